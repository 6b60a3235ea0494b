//! Addresses of HTTP probes, as Go's `net/url` makes them of what a pod writes and a server answers. Source: `formatURL` of
//! `pkg/probe/http/request.go`.

use std::fmt::{self, Write as _};

/// Where an HTTP probe asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeUrl {
    pub(super) tls: bool,
    /// An address or a name, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, fit for a request line.
    pub(super) target: String,
}

/// `host:port`, with brackets around what has colons of its own.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl ProbeUrl {
    /// A path as a pod writes it, perhaps with a query.
    pub(super) fn new(tls: bool, host: &str, port: u16, path: &str) -> Self {
        Self { tls, host: host.to_owned(), port, target: target(path) }
    }

    pub(super) fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// Where an answer sends its client; why not, as Go says it.
    pub(super) fn redirected(&self, location: &str) -> Result<Self, String> {
        let location = location.split('#').next().unwrap_or_default();
        if let Some(rest) = location.strip_prefix("//") {
            return Self::absolute(self.tls, rest, location);
        }
        if let Some((scheme, rest)) = with_scheme(location) {
            let tls = match scheme.to_ascii_lowercase().as_str() {
                "http" => false,
                "https" => true,
                other => return Err(format!("unsupported protocol scheme {other:?}")),
            };
            let rest = rest.strip_prefix("//").ok_or_else(|| "http: no Host in request URL".to_owned())?;
            return Self::absolute(tls, rest, location);
        }
        let path = self.target.split('?').next().unwrap_or("/");
        let target = match location.bytes().next() {
            None => self.target.clone(),
            Some(b'/') => target(location),
            Some(b'?') => target(&format!("{path}{location}")),
            Some(_) => {
                let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
                target(&format!("{directory}{location}"))
            }
        };
        Ok(Self { target, ..self.clone() })
    }

    fn absolute(tls: bool, rest: &str, whole: &str) -> Result<Self, String> {
        let bad = || format!("failed to parse Location header {whole:?}");
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit('@').next().unwrap_or(authority);
        let (host, port) = match authority.strip_prefix('[').map(|open| open.split_once(']')) {
            Some(Some((host, rest))) => (host, rest.strip_prefix(':')),
            Some(None) => return Err(bad()),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port.filter(|port| !port.is_empty()) {
            Some(port) => port.parse().map_err(|_error| bad())?,
            None if tls => 443,
            None => 80,
        };
        if host.is_empty() {
            return Err("http: no Host in request URL".to_owned());
        }
        Ok(Self { tls, host: host.to_owned(), port, target: target(path) })
    }
}

impl fmt::Display for ProbeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Whether a location is an address of its own, and not to be read from where the answer came.
pub(super) fn is_absolute(location: &str) -> bool {
    with_scheme(location).is_some()
}

/// The scheme of a location that has one, and what follows it.
fn with_scheme(location: &str) -> Option<(&str, &str)> {
    location.split_once(':').filter(|(scheme, _)| is_scheme(scheme))
}

fn is_scheme(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A path and query that can stand in a request line: from the root, what cannot stand there escaped, without fragment. A
/// path with a broken escape is taken literally, question mark and all.
fn target(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let is_literal = !has_whole_escapes(path);
    let mut target = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        target.push('/');
    }
    for byte in path.bytes() {
        let is_plain = byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
        if is_plain && !(is_literal && matches!(byte, b'%' | b'?')) {
            target.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _written = write!(target, "%{byte:02X}").is_ok();
        }
    }
    target
}

fn has_whole_escapes(path: &str) -> bool {
    let is_hex = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
    let bytes = path.split('?').next().unwrap_or_default().as_bytes();
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    escapes.all(|(at, _)| is_hex(bytes.get(at + 1).copied()) && is_hex(bytes.get(at + 2).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_an_address() {
        for (host, path, expected) in [
            ("10.0.0.1", "/healthz", "http://10.0.0.1:80/healthz"),
            ("10.0.0.1", "healthz", "http://10.0.0.1:80/healthz"),
            ("10.0.0.1", "", "http://10.0.0.1:80/"),
            ("10.0.0.1", "?a=b", "http://10.0.0.1:80/?a=b"),
            ("10.0.0.1", "/a?b=c&d#e", "http://10.0.0.1:80/a?b=c&d"),
            ("10.0.0.1", "/a b\r\nX: y", "http://10.0.0.1:80/a%20b%0D%0AX:%20y"),
            ("10.0.0.1", "/ä", "http://10.0.0.1:80/%C3%A4"),
            ("10.0.0.1", "/a%20b", "http://10.0.0.1:80/a%20b"),
            ("10.0.0.1", "/50%?x", "http://10.0.0.1:80/50%25%3Fx"),
            ("fd00::1", "/x", "http://[fd00::1]:80/x"),
            ("a.example", "/x", "http://a.example:80/x"),
        ] {
            assert_eq!(ProbeUrl::new(false, host, 80, path).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn an_answer_sends_elsewhere() {
        let from = ProbeUrl::new(false, "10.0.0.1", 8080, "/a/b?c");
        for (location, expected) in [
            ("/x?y", "http://10.0.0.1:8080/x?y"),
            ("x", "http://10.0.0.1:8080/a/x"),
            ("?d", "http://10.0.0.1:8080/a/b?d"),
            ("", "http://10.0.0.1:8080/a/b?c"),
            ("http://10.0.0.1:9/x", "http://10.0.0.1:9/x"),
            ("HTTPS://10.0.0.1/", "https://10.0.0.1:443/"),
            ("http://b.example", "http://b.example:80/"),
            ("//b.example:1/x", "http://b.example:1/x"),
            ("http://u:p@[fd00::1]:7?q#f", "http://[fd00::1]:7/?q"),
        ] {
            assert_eq!(from.redirected(location).unwrap().to_string(), expected, "{location}");
        }
        for (location, why) in [
            ("ftp://a/", "unsupported protocol scheme \"ftp\""),
            ("http:/a", "http: no Host in request URL"),
            ("http://:80/", "http: no Host in request URL"),
            ("http://a:99999/", "failed to parse Location header \"http://a:99999/\""),
            ("http://[fd00::1", "failed to parse Location header \"http://[fd00::1\""),
        ] {
            assert_eq!(from.redirected(location).unwrap_err(), why, "{location}");
        }
    }
}
