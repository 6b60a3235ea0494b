//! Which proxy leads to a server, where the environment says. Source: `golang.org/x/net/http/httpproxy`, by which client-go goes.

use std::net::IpAddr;

/// What the environment says of proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTPS_PROXY`: for servers that are asked by TLS.
    pub https: String,
    /// `HTTP_PROXY`: for others.
    pub http: String,
    /// `NO_PROXY`: servers that are asked without, with commas between.
    pub no_proxy: String,
}

impl Proxies {
    /// The proxy for a server; none where there is none for it.
    #[must_use]
    pub fn of_server(&self, is_tls: bool, host: &str, port: u16) -> Option<&str> {
        let proxy = if is_tls { &self.https } else { &self.http };
        let host = host.trim_matches(['[', ']']).to_lowercase();
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let is_left_out = || self.no_proxy.split(',').any(|entry| leaves_out(entry.trim(), &host, port));
        (!proxy.is_empty() && !is_own && !is_left_out()).then_some(proxy.as_str())
    }
}

/// Whether an entry of `NO_PROXY` names a server.
fn leaves_out(entry: &str, host: &str, port: u16) -> bool {
    let entry = entry.to_lowercase();
    let ip = host.parse::<IpAddr>().ok();
    if entry == "*" {
        return true;
    }
    if let Some((network, length)) = entry.split_once('/') {
        return ip.is_some_and(|ip| is_within(ip, network, length));
    }
    let (name, is_port) = match entry.rsplit_once(':') {
        Some((name, written)) if !name.contains(':') || name.ends_with(']') => {
            (name, written.parse::<u16>().is_ok_and(|written| written == port))
        }
        _ => (entry.as_str(), true),
    };
    let name = name.trim_matches(['[', ']']);
    if let Ok(named) = name.parse::<IpAddr>() {
        return is_port && ip == Some(named);
    }
    let domain = name.strip_prefix('*').unwrap_or(name);
    let is_named = match domain.strip_prefix('.') {
        Some(parent) => is_below(host, parent),
        None => host == domain || is_below(host, domain),
    };
    is_port && !domain.is_empty() && is_named
}

fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Whether an address is in a network, given by one of its addresses and the length of its prefix.
fn is_within(ip: IpAddr, network: &str, length: &str) -> bool {
    let Ok(length) = length.parse::<u32>() else { return false };
    match (ip, network.parse::<IpAddr>()) {
        (IpAddr::V4(ip), Ok(IpAddr::V4(network))) if length <= 32 => {
            (ip.to_bits() ^ network.to_bits()).checked_shr(32 - length).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), Ok(IpAddr::V6(network))) if length <= 128 => {
            (ip.to_bits() ^ network.to_bits()).checked_shr(128 - length).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_leads_to_the_servers_of_its_scheme() {
        let proxies =
            Proxies { https: "http://s".to_owned(), http: "http://p".to_owned(), ..Proxies::default() };
        assert_eq!(proxies.of_server(true, "api.example", 6443), Some("http://s"));
        assert_eq!(proxies.of_server(false, "api.example", 8080), Some("http://p"));
        for own in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.0.1", "::1", "[::1]"] {
            assert_eq!(proxies.of_server(true, own, 6443), None, "{own}");
        }
        assert_eq!(Proxies::default().of_server(true, "api.example", 6443), None);
    }

    #[test]
    fn servers_are_left_out_by_name_address_network_and_port() {
        for (entries, host, is_left_out) in [
            ("", "api.example", false),
            ("*", "api.example", true),
            ("other, api.example", "api.example", true),
            ("example", "api.example", true),
            ("EXAMPLE", "api.Example", true),
            (".example", "api.example", true),
            (".example", "example", false),
            ("*.example", "api.example", true),
            ("*.example", "example", false),
            ("example", "api.notexample", false),
            ("api.example:6443", "api.example", true),
            ("api.example:443", "api.example", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1:6443", "10.0.0.1", true),
            ("10.0.0.1:1", "10.0.0.1", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.0.0.1/32", "10.0.0.1", true),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("10.0.0.0/x", "10.0.0.1", false),
            ("10.0.0.0/8", "api.example", false),
            ("fd00::/8", "fd00::1", true),
            ("fd00::/8", "[fd12::1]", true),
            ("fd00::1", "fd00::1", true),
            ("[fd00::1]:6443", "fd00::1", true),
            ("[fd00::1]:1", "fd00::1", false),
            ("fe00::/8", "fd00::1", false),
            (",,", "api.example", false),
        ] {
            let proxies =
                Proxies { https: "http://s".to_owned(), no_proxy: entries.to_owned(), ..Proxies::default() };
            assert_eq!(proxies.of_server(true, host, 6443).is_none(), is_left_out, "{entries} {host}");
        }
    }
}
