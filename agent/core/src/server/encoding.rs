//! How an answer may be encoded. Source: `NegotiateContentEncoding` of `github.com/prometheus/client_golang`, RFC 9110, 12.5.3.

/// Whether whoever asks takes gzip, by the value of `Accept-Encoding`.
#[must_use]
pub fn takes_gzip(accepted: &str) -> bool {
    let weights = accepted.split(',').filter_map(|one| {
        let (name, weight) = match one.split_once(';') {
            Some((name, parameter)) => {
                (name, parameter.trim().strip_prefix("q=")?.trim().parse::<f32>().ok()?)
            }
            None => (one, 1.0),
        };
        Some((name.trim(), weight))
    });
    let of = |wanted: &str| {
        weights.clone().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, weight)| weight)
    };
    of("gzip").or_else(|| of("*")).is_some_and(|weight| weight > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_those_who_take_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("GZIP", true),
            ("deflate, gzip;q=0.5, br", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, *", false),
            ("*", true),
            ("*;q=0", false),
            ("identity", false),
            ("gzipped", false),
            ("gzip;q=x", false),
            ("gzip;level=9", false),
            ("", false),
            (",,;", false),
        ] {
            assert_eq!(takes_gzip(accepted), expected, "{accepted}");
        }
    }
}
