//! Forms of names. Source: `k8s.io/apimachinery/pkg/util/validation/validation.go`.

/// A DNS label (RFC 1123): at most 63 of `a-z0-9-`, not beginning or ending with `-`.
#[must_use]
pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A DNS subdomain (RFC 1123): at most 253, labels of any length joined by dots.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The name of a port: at most 15 of `a-z0-9-`, a letter among them, no `--`.
#[must_use]
pub(super) fn is_port_name(name: &str) -> bool {
    is_dns_label(name)
        && name.len() <= 15
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.contains("--")
}

/// The name of an environment variable: printable ASCII without `=`.
#[must_use]
pub(super) fn is_env_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

/// A key of a label or an annotation: an optional DNS subdomain and `/`, then a qualified name.
#[must_use]
pub(super) fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_text(name) && !name.is_empty(),
        None => is_label_text(key) && !key.is_empty(),
    }
}

/// The value of a label: at most 63 of `A-Za-z0-9-_.`, beginning and ending with a letter or digit; or empty.
#[must_use]
pub(super) fn is_label_text(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = text.bytes().next().into_iter().chain(text.bytes().last());
    text.len() <= 63 && text.bytes().all(inner) && ends.into_iter().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_forms() {
        let long = "a".repeat(64);
        for (name, label, subdomain) in [
            ("web", true, true),
            ("web-1", true, true),
            ("1web", true, true),
            ("web.example", false, true),
            ("Web", false, false),
            ("-web", false, false),
            ("web-", false, false),
            ("web..x", false, false),
            ("we_b", false, false),
            ("", false, false),
            ("web/../x", false, false),
            (long.as_str(), false, true),
        ] {
            assert_eq!(is_dns_label(name), label, "label {name}");
            assert_eq!(is_dns_subdomain(name), subdomain, "subdomain {name}");
        }
        for (name, good) in
            [("http", true), ("8080", false), ("a--b", false), ("a-very-long-port", false), ("Http", false)]
        {
            assert_eq!(is_port_name(name), good, "{name}");
        }
        for (key, good) in [
            ("app", true),
            ("example.com/app", true),
            ("/app", false),
            ("a/b/c", false),
            ("Ex.com/a", false),
            ("", false),
        ] {
            assert_eq!(is_qualified_name(key), good, "{key}");
        }
        assert!(is_env_name("my.env-1") && !is_env_name("a=b") && !is_env_name("a\nb") && !is_env_name(""));
        assert!(
            is_label_text("") && is_label_text("v1.2_3") && !is_label_text("-a") && !is_label_text("a b")
        );
    }
}
