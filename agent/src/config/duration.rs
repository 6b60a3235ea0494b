//! Durations as Go writes them: `20s`, `1h30m`, `1.5s`, `0`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A duration of a configuration file. Negative ones are refused: no field of the kubelet takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct GoDuration(pub Duration);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not in Go's form.
    #[error("`{0}` is not a duration: write numbers with units, such as `20s`, `1h30m` or `500ms`")]
    Malformed(String),
    /// Less than zero.
    #[error("`{0}` is negative: a duration must be zero or more")]
    Negative(String),
    /// More than Go's 2^63 − 1 nanoseconds.
    #[error("`{0}` is too long: the most is about 290 years")]
    TooLong(String),
}

/// Units, longest name first where one is the start of another. Source: Go `time.ParseDuration`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl std::str::FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        if let Some(size) = text.strip_prefix('-') {
            let zero = nanoseconds(size) == Some(0);
            let known = nanoseconds(size).is_some();
            return match (zero, known) {
                (true, _) => Ok(Self::default()),
                (false, true) => Err(DurationError::Negative(text.to_owned())),
                (false, false) => Err(DurationError::Malformed(text.to_owned())),
            };
        }
        let nanoseconds = nanoseconds(unsigned).ok_or_else(|| DurationError::Malformed(text.to_owned()))?;
        let nanoseconds =
            i64::try_from(nanoseconds).map_err(|_too_large| DurationError::TooLong(text.to_owned()))?;
        Ok(Self(Duration::from_nanos(nanoseconds.unsigned_abs())))
    }
}

impl fmt::Display for GoDuration {
    /// As Go prints it: `1h30m0s`, `20s`, `500ms`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.subsec_nanos();
        let seconds = self.0.as_secs();
        if seconds == 0 && nanoseconds > 0 {
            let (unit, size) = match nanoseconds {
                1_000_000.. => ("ms", 1_000_000),
                1_000.. => ("µs", 1_000),
                _ => ("ns", 1),
            };
            return write!(out, "{}{unit}", decimal(nanoseconds / size, nanoseconds % size, size));
        }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(out, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(out, "{minutes}m")?;
        }
        let seconds = u32::try_from(seconds % 60).unwrap_or(0);
        write!(out, "{}s", decimal(seconds, nanoseconds, 1_000_000_000))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn decimal(whole: u32, part: u32, one: u32) -> String {
    let width = one.ilog10() as usize;
    let part = format!("{part:0width$}");
    let part = part.trim_end_matches('0');
    if part.is_empty() { whole.to_string() } else { format!("{whole}.{part}") }
}

fn nanoseconds(text: &str) -> Option<u128> {
    if text == "0" {
        return Some(0);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|digit: char| !digit.is_ascii_digit() && digit != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|digit: char| digit.is_ascii_digit() || digit == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let size = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        total = total.saturating_add(part(number, size)?);
        rest = tail;
    }
    Some(total)
}

fn part(number: &str, size: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || whole.len() > 19 || fraction.contains('.') {
        return None;
    }
    let whole: u128 = format!("0{whole}").parse().ok()?;
    // Digits beyond the 18th are far below a nanosecond.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = format!("0{fraction}").parse().ok()?;
    Some(whole * size + fraction * size / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_go() {
        for (text, nanoseconds, printed) in [
            ("0", 0, "0s"),
            ("20s", 20_000_000_000, "20s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1m0s", 60_000_000_000, "1m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("100ms", 100_000_000, "100ms"),
            ("1.5ms", 1_500_000, "1.5ms"),
            ("2us", 2_000, "2µs"),
            ("2µs", 2_000, "2µs"),
            ("3ns", 3, "3ns"),
            ("+5m", 300_000_000_000, "5m0s"),
            ("-0s", 0, "0s"),
            ("4h0m0s", 14_400_000_000_000, "4h0m0s"),
        ] {
            let duration: GoDuration = text.parse().unwrap();
            assert_eq!(duration.0, Duration::from_nanos(nanoseconds), "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "20", "s", "1d", "1 s", "1s2", "..s", "1.2.3s", "five", "-", "1hh", "é1s"] {
            assert_eq!(text.parse::<GoDuration>(), Err(DurationError::Malformed(text.to_owned())));
        }
        assert_eq!("-1s".parse::<GoDuration>(), Err(DurationError::Negative("-1s".to_owned())));
        assert_eq!("9999999h".parse::<GoDuration>(), Err(DurationError::TooLong("9999999h".to_owned())));
    }
}
