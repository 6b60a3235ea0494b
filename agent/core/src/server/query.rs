//! What stands behind the `?` of a URL. Source: `ParseQuery` of `net/url`.

use jiff::Timestamp;

use super::percent;

/// Names and values, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query. A pair that is not form encoding, or has a semicolon, is passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        let decoded = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescaped(name)?, unescaped(value)?))
        });
        Self(decoded.collect())
    }

    /// Every value of a name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The first value of a name.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All of it.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// A time as Go reads it by `time.RFC3339`, with or without a fraction.
#[must_use]
pub fn rfc3339(text: &str) -> Option<Timestamp> {
    const FORM: &[u8; 19] = b"0000-00-00T00:00:00";
    let (head, rest) = text.as_bytes().split_first_chunk::<19>()?;
    let in_form = head.iter().zip(FORM).all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        sign => byte == sign,
    });
    // A leap second is none of Go's times.
    if !in_form || head.ends_with(b"60") || rest.contains(&b'[') {
        return None;
    }
    text.parse().ok()
}

fn unescaped(text: &str) -> Option<String> {
    let bytes = percent::decoded(&text.replace('+', " "))?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_go_reads_it() {
        let query =
            Query::parse("a=1&&b=x+y%2Fz&a=2&c&=v&d=1;e=2&f=%4&g=%zz&%68=%e2%82%ac&i=%ff&j=a=b&k=%+1");
        let all = |name| query.all(name).collect::<Vec<_>>();
        for (name, values) in [
            ("a", vec!["1", "2"]),
            ("b", vec!["x y/z"]),
            ("c", vec![""]),
            ("", vec!["v"]),
            ("d", vec![]),
            ("f", vec![]),
            ("g", vec![]),
            ("h", vec!["\u{20ac}"]),
            ("i", vec!["\u{fffd}"]),
            ("j", vec!["a=b"]),
            ("k", vec![]),
        ] {
            assert_eq!(all(name), values, "{name}");
        }
        assert_eq!((query.first("a"), query.first("z")), (Some("1"), None));
        assert_eq!(Query::parse(""), Query::default());
    }

    #[test]
    fn times_are_read_as_go_reads_them() {
        for text in [
            "2026-11-21T07:00:01Z",
            "2026-11-21T07:00:01.5Z",
            "2026-11-21T07:00:01.123456789+02:00",
            "2026-11-21T00:00:00-11:30",
        ] {
            assert_eq!(rfc3339(text), Some(text.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "null",
            "now",
            "2026-11-21",
            "2026-11-21T07:00:01",
            "2026-11-21 07:00:01Z",
            "2026-11-21t07:00:01Z",
            "2026-13-21T07:00:01Z",
            "2026-11-21T07:00:60Z",
            "2026-11-21T07:00:01Z[UTC]",
            "2026-11-21T07:00:01.Z",
            "+002026-11-21T07:00:01Z",
            "2026-11-21T07:00:01\u{20ac}",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }
}
