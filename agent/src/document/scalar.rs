//! What a plain scalar means.

use super::{Number, Value};

/// Resolves a scalar written without quotes, as go-yaml does with the YAML 1.1 schema.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        _ => number(text).map_or_else(|| Value::Text(text.to_owned()), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    let starts_like_one = text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    if !starts_like_one {
        return None;
    }
    if let Some(integer) = integer(&text.replace('_', "")) {
        return Some(Number::Integer { value: integer, text: text.to_owned() });
    }
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    let float = text.parse::<f64>().ok().filter(|float| float.is_finite() && has_digit)?;
    Some(Number::Float { value: float, text: text.to_owned() })
}

fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // A second sign is not a number, though `from_str_radix` would take it.
    if !digits.as_bytes().first()?.is_ascii_alphanumeric() {
        return None;
    }
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_as_in_the_api_machinery() {
        let integer = |text: &str| match resolve(text) {
            Value::Number(Number::Integer { value, .. }) => Some(value),
            _ => None,
        };
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("-7", -7),
            ("+7", 7),
            ("0644", 0o644),
            ("0o644", 0o644),
            ("0x1F", 31),
            ("0b101", 5),
            ("1_000", 1000),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["1.5", "1e3", ".5", "-2.5E-3", "099"] {
            assert!(matches!(resolve(text), Value::Number(Number::Float { .. })), "{text}");
        }
        for text in
            ["10.0.0.1", "1Gi", "100m", "-", ".", "--1", "+-1", "0x", "nan", ".inf", "2026-01-01", "a"]
        {
            assert_eq!(resolve(text), Value::Text(text.to_owned()));
        }
        for text in ["", "~", "null"] {
            assert_eq!(resolve(text), Value::Null);
        }
        for (text, value) in [
            ("true", true),
            ("yes", true),
            ("y", true),
            ("ON", true),
            ("no", false),
            ("N", false),
            ("Off", false),
        ] {
            assert_eq!(resolve(text), Value::Bool(value));
        }
    }
}
