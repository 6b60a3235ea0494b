//! A directory of files as Go's `http.FileServer` shows it, as far as that is decided without files.
//!
//! Source: `net/http/fs.go`, `mime/type.go`, `net/http/sniff.go`.

/// So many bytes of the beginning of a file tell its type.
pub const SNIFFED: usize = 512;

/// What of a file is asked for by a `Range` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Bytes from the first on.
    Range {
        /// The first.
        first: u64,
        /// How many: not 0.
        length: u64,
    },
    /// None that it has.
    Beyond,
    /// No range at all.
    Unreadable,
}

impl Part {
    /// Reads a `Range` header about a file of `size` bytes. Of more than one range the whole file is given, which every client takes.
    #[must_use]
    pub fn of(header: Option<&str>, size: u64) -> Self {
        let Some(header) = header.filter(|header| !header.is_empty()) else { return Self::Whole };
        let Some(ranges) = header.strip_prefix("bytes=") else { return Self::Unreadable };
        let mut ranges = ranges.split(',').map(str::trim).filter(|range| !range.is_empty());
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return Self::Whole };
        let Some((first, last)) = range.split_once('-') else { return Self::Unreadable };
        let number = |text: &str| text.trim().parse::<u64>().ok().filter(|_| !text.trim().starts_with('+'));
        let (first, end) = match (first.trim(), last.trim()) {
            ("", last) => match number(last) {
                Some(length) => (size.saturating_sub(length), size),
                None => return Self::Unreadable,
            },
            (first, "") => match number(first) {
                Some(first) => (first, size),
                None => return Self::Unreadable,
            },
            (first, last) => match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => (first, size.min(last.saturating_add(1))),
                _ => return Self::Unreadable,
            },
        };
        match end.checked_sub(first) {
            _ if size == 0 => Self::Whole,
            None | Some(0) => Self::Beyond,
            Some(length) => Self::Range { first, length },
        }
    }
}

/// A name of a directory, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Whether it is a directory itself, and no link to one.
    pub is_directory: bool,
}

/// The page of a directory.
#[must_use]
pub fn listing(mut names: Vec<Listed>) -> String {
    names.sort();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for Listed { name, is_directory } in names {
        let name = if is_directory { format!("{name}/") } else { name };
        page.extend(["<a href=\"", &relative(&name), "\">", &html(&name), "</a>\n"]);
    }
    page + "</pre>\n"
}

/// The reference to a name beside, as a URL: never one that leads elsewhere. Source: `URL.String` of `net/url`.
#[must_use]
pub fn relative(name: &str) -> String {
    let mut url = String::with_capacity(name.len());
    // What is before a colon is a scheme, what is behind two slashes a host.
    if name.split('/').next().is_some_and(|first| first.is_empty() || first.contains(':')) {
        url.push_str("./");
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push('%');
            url.extend(
                [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])),
            );
        }
    }
    url
}

/// The type of a file, by the end of its name, else by its first [`SNIFFED`] bytes. Types that browsers run are those of logs nowhere,
/// and are shown as text.
#[must_use]
pub fn content_type(name: &str, begins: &[u8]) -> &'static str {
    const TEXT: &str = "text/plain; charset=utf-8";
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("csv") => "text/csv; charset=utf-8",
        Some("gz") => "application/gzip",
        Some("json") => "application/json",
        Some("zip") => "application/zip",
        Some("bin") => "application/octet-stream",
        Some("txt" | "text" | "htm" | "html" | "xhtml" | "js" | "mjs" | "css" | "svg" | "xml") => TEXT,
        _ if begins.starts_with(b"\x1f\x8b\x08") => "application/x-gzip",
        _ if begins.starts_with(b"PK\x03\x04") => "application/zip",
        _ if begins.iter().copied().any(is_binary) => "application/octet-stream",
        _ => TEXT,
    }
}

/// Source: the algorithm of the MIME sniffing standard.
fn is_binary(byte: u8) -> bool {
    matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f)
}

fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_given_and_of_several_all() {
        let range = |first, length| Part::Range { first, length };
        for (header, size, part) in [
            (None, 10, Part::Whole),
            (Some(""), 10, Part::Whole),
            (Some("bytes=0-0"), 10, range(0, 1)),
            (Some("bytes=2-5"), 10, range(2, 4)),
            (Some("bytes= 2 - 5 "), 10, range(2, 4)),
            (Some("bytes=2-"), 10, range(2, 8)),
            (Some("bytes=2-99"), 10, range(2, 8)),
            (Some("bytes=0-18446744073709551615"), 10, range(0, 10)),
            (Some("bytes=-3"), 10, range(7, 3)),
            (Some("bytes=-99"), 10, range(0, 10)),
            (Some("bytes=-0"), 10, Part::Beyond),
            (Some("bytes=10-"), 10, Part::Beyond),
            (Some("bytes=10-12"), 10, Part::Beyond),
            (Some("bytes=0-"), 0, Part::Whole),
            (Some("bytes=0-1,4-5"), 10, Part::Whole),
            (Some("bytes="), 10, Part::Whole),
            (Some("lines=0-1"), 10, Part::Unreadable),
            (Some("bytes=5-2"), 10, Part::Unreadable),
            (Some("bytes=x-"), 10, Part::Unreadable),
            (Some("bytes=--1"), 10, Part::Unreadable),
            (Some("bytes=+1-"), 10, Part::Unreadable),
            (Some("bytes=-"), 10, Part::Unreadable),
            (Some("bytes=7"), 10, Part::Unreadable),
            (Some("bytes=99999999999999999999-"), 10, Part::Unreadable),
        ] {
            assert_eq!(Part::of(header, size), part, "{header:?} of {size}");
        }
    }

    #[test]
    fn a_directory_is_listed_as_go_lists_it() {
        let names = ["pods", "a b?#.log", "<script>'\"&", "x:y", "\u{e4}%"];
        let listed = names.map(|name| Listed { name: name.to_owned(), is_directory: name == "pods" });
        assert_eq!(
            listing(listed.to_vec()),
            r#"<!doctype html>
<meta name="viewport" content="width=device-width">
<pre>
<a href="%3Cscript%3E%27%22&">&lt;script&gt;&#39;&#34;&amp;</a>
<a href="a%20b%3F%23.log">a b?#.log</a>
<a href="pods/">pods/</a>
<a href="./x:y">x:y</a>
<a href="%C3%A4%25">ä%</a>
</pre>
"#
        );
        assert!(listing(Vec::new()).ends_with("<pre>\n</pre>\n"));
    }

    #[test]
    fn a_reference_leads_nowhere_else() {
        for (name, url) in [
            ("pods/", "pods/"),
            ("//evil/", ".///evil/"),
            ("javascript:x/", "./javascript:x/"),
            ("\r\nX: y", "./%0D%0AX:%20y"),
        ] {
            assert_eq!(relative(name), url);
        }
    }

    #[test]
    fn a_type_is_told_by_name_or_content() {
        for (name, begins, kind) in [
            ("syslog", "a line\n".as_bytes(), "text/plain; charset=utf-8"),
            ("empty.log", b"", "text/plain; charset=utf-8"),
            ("0.log.20261121-070006.gz", b"\x1f\x8b\x08", "application/gzip"),
            ("old", b"\x1f\x8b\x08", "application/x-gzip"),
            ("wtmp", b"\x02\0\0\0", "application/octet-stream"),
            ("color.log", b"\x1b[2J\t\r\n\x0c", "text/plain; charset=utf-8"),
            ("page.HTML", b"<script>", "text/plain; charset=utf-8"),
            ("audit.json", b"{}", "application/json"),
        ] {
            assert_eq!(content_type(name, begins), kind, "{name}");
        }
    }
}
