//! Quantities of the API, exactly: `100m`, `1.5Gi`, `1e3`. Never a floating point number.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go`: at most 2^63 − 1 in size, at least 10^-9 in precision,
//! larger ones capped and finer ones rounded up (away from zero).

use std::str::FromStr;

/// A number of billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Quantity {
    nano: i128,
}

const NANO: i128 = 1_000_000_000;
const MAX: i128 = (i64::MAX as i128) * NANO;

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a quantity: write a number with an optional suffix, such as `500m`, `2`, `128Mi` or `1G`"
)]
pub struct QuantityError(pub String);

impl Quantity {
    /// Whole units, rounded up.
    #[must_use]
    pub fn units(self) -> i64 {
        ceil(self.nano, NANO)
    }

    /// Thousandths, rounded up.
    #[must_use]
    pub fn milli(self) -> i64 {
        ceil(self.nano, NANO / 1000)
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError(text.to_owned()))
    }
}

fn ceil(nano: i128, unit: i128) -> i64 {
    let floor = nano.div_euclid(unit);
    let value = if nano.rem_euclid(unit) == 0 { floor } else { floor + 1 };
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|digit: char| !digit.is_ascii_digit() && digit != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let scale = Scale::parse(suffix)?;
    let nano = magnitude(whole, fraction, scale).min(MAX);
    Some(Quantity { nano: if negative { -nano } else { nano } })
}

/// What a suffix multiplies with.
#[derive(Clone, Copy)]
enum Scale {
    /// 10 to this power.
    Decimal(i32),
    /// 2 to this power.
    Binary(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            _ => Self::Decimal(i32::from(suffix.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?)),
        })
    }
}

/// Billionths of `whole.fraction` times the scale, rounded up and capped.
fn magnitude(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    match scale {
        Scale::Decimal(power) => decimal(digits, power.saturating_sub(places).saturating_add(9)),
        Scale::Binary(power) => binary(digits, places, power),
    }
}

/// `digits` times 10 to `power`, rounded up and capped.
fn decimal(digits: &str, power: i32) -> i128 {
    let length = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let size = length.saturating_add(power);
    // More than 28 digits are more than MAX.
    if size > 28 {
        return MAX;
    }
    if size <= 0 {
        return 1;
    }
    let kept = usize::try_from(size.min(length)).unwrap_or(0);
    let (kept, dropped) = digits.split_at(kept);
    let value: i128 = kept.parse().unwrap_or(MAX);
    let factor = 10_i128.pow(u32::try_from(power.max(0)).unwrap_or(0));
    let up = i128::from(dropped.bytes().any(|digit| digit != b'0'));
    value.saturating_mul(factor).saturating_add(up)
}

/// `digits` divided by 10 to `places`, times 2 to `power`, in billionths, rounded up and capped.
fn binary(digits: &str, places: i32, power: u32) -> i128 {
    // Beyond 18 digits behind the point, 2^60 times what is cut off is still rounded up below.
    let cut = usize::try_from(places.saturating_sub(18).max(0)).unwrap_or(0).min(digits.len());
    let (kept, dropped) = digits.split_at(digits.len() - cut);
    let places = places - i32::try_from(cut).unwrap_or(0);
    let up = i128::from(dropped.bytes().any(|digit| digit != b'0'));
    let Ok(value) = format!("0{kept}").parse::<i128>() else { return MAX };
    let value = value.saturating_add(up);
    let divisor = 10_i128.pow(u32::try_from(places.min(18)).unwrap_or(0));
    let whole = value / divisor;
    if whole > i128::from(i64::MAX) >> power {
        return MAX;
    }
    let rest = (value % divisor) << power;
    let below_one = (rest % divisor) * NANO;
    let below_one = below_one / divisor + i128::from(below_one % divisor != 0);
    ((whole << power) + rest / divisor) * NANO + below_one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact_and_round_up() {
        for (text, milli, units) in [
            ("0", 0, 0),
            ("1", 1000, 1),
            ("100m", 100, 1),
            ("0.1", 100, 1),
            (".5", 500, 1),
            ("5.", 5000, 5),
            ("1.0001", 1001, 2),
            ("1n", 1, 1),
            ("1u", 1, 1),
            ("0.1n", 1, 1),
            ("1500m", 1500, 2),
            ("1e3", 1_000_000, 1000),
            ("1E3", 1_000_000, 1000),
            ("1e-3", 1, 1),
            ("12k", 12_000_000, 12_000),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("0.3Ki", 307_200, 308),
            ("128Mi", 134_217_728_000, 134_217_728),
            ("1E", i64::MAX, 1_000_000_000_000_000_000),
            ("7Ei", i64::MAX, 7 << 60),
            ("+2", 2000, 2),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!(quantity.units(), units, "units of {text}");
            assert_eq!(quantity.milli(), milli, "thousandths of {text}");
        }
    }

    #[test]
    fn too_large_quantities_are_capped() {
        for text in [
            "9223372036854775807",
            "9223372036854775808",
            "1e30",
            "8Ei",
            "99999999999999999999999Ki",
            "1e32000",
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap().units(), i64::MAX, "{text}");
        }
    }

    #[test]
    fn negative_quantities_are_read_and_told_apart() {
        let minus: Quantity = "-1.5".parse().unwrap();
        assert!(minus.is_negative());
        assert_eq!(minus.units(), -1);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", "-", "m", ".", "1.2.3", "1 Gi", "1gi", "1K", "1mi", "0x1", "1e", "1e99999", "--1", "1MiB",
            "1,5", "1e1.5",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError(text.to_owned())));
        }
    }
}
