//! The canonical form of amounts.
//!
//! Source: `CanonicalizeBytes` of `k8s.io/apimachinery/pkg/api/resource/quantity.go`, `suffix.go` beside it.

/// In powers of what an amount is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Of two: `64Mi`. What is less than 1 Ki, and what is no whole number, is written with powers of ten.
    Binary,
    /// Of ten, by name: `64M`.
    Decimal,
    /// Of ten, by number: `64e6`.
    Exponent,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// From a thousandth on.
const DECIMAL: [&str; 8] = ["m", "", "k", "M", "G", "T", "P", "E"];
const EXPONENT: [&str; 8] = ["e-3", "", "e3", "e6", "e9", "e12", "e15", "e18"];

impl Form {
    /// That of a quantity as somebody wrote it.
    pub(super) fn of(text: &str) -> Self {
        if text.ends_with('i') {
            return Self::Binary;
        }
        // `1E` alone is 10^18 by its name.
        let has_exponent = text.find(['e', 'E']).is_some_and(|at| at + 1 < text.len());
        if has_exponent { Self::Exponent } else { Self::Decimal }
    }

    /// A number of units.
    pub(super) fn written(self, units: u64) -> String {
        self.written_milli(u128::from(units) * 1000)
    }

    /// A number of thousandths.
    pub(super) fn written_milli(self, milli: u128) -> String {
        match self {
            Self::Binary if milli >= 1_024_000 && milli.is_multiple_of(1000) => {
                in_units(milli / 1000, 1024, &BINARY)
            }
            _ if milli == 0 => "0".to_owned(),
            Self::Binary | Self::Decimal => in_units(milli, 1000, &DECIMAL),
            Self::Exponent => in_units(milli, 1000, &EXPONENT),
        }
    }
}

/// In the largest unit of which it is a multiple.
fn in_units(mut amount: u128, step: u128, names: &[&str]) -> String {
    let mut names = names.iter();
    let mut name = names.next().copied().unwrap_or_default();
    while amount.is_multiple_of(step)
        && let Some(larger) = names.next()
    {
        amount /= step;
        name = larger;
    }
    format!("{amount}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go writes them.
    #[test]
    fn amounts_are_written_as_the_kubelet_writes_them() {
        for (amount, binary, decimal, exponent) in [
            (0, "0", "0", "0"),
            (999, "999", "999", "999"),
            (1000, "1k", "1k", "1e3"),
            (1024, "1Ki", "1024", "1024"),
            (1500, "1500", "1500", "1500"),
            (200_000_000, "200000000", "200M", "200e6"),
            (64 << 20, "64Mi", "67108864", "67108864"),
            (3 << 40, "3Ti", "3298534883328", "3298534883328"),
            (5_000_000_000_000_000_000, "4882812500000000Ki", "5E", "5e18"),
        ] {
            for (form, text) in [(Form::Binary, binary), (Form::Decimal, decimal), (Form::Exponent, exponent)]
            {
                assert_eq!(form.written(amount), text, "{form:?}");
            }
        }
        for (milli, binary, decimal, exponent) in [
            (1, "1m", "1m", "1e-3"),
            (1500, "1500m", "1500m", "1500e-3"),
            (2000, "2", "2", "2"),
            (1_000_000, "1k", "1k", "1e3"),
            (1_024_000, "1Ki", "1024", "1024"),
            (1_024_500, "1024500m", "1024500m", "1024500e-3"),
        ] {
            for (form, text) in [(Form::Binary, binary), (Form::Decimal, decimal), (Form::Exponent, exponent)]
            {
                assert_eq!(form.written_milli(milli), text, "{form:?}");
            }
        }
    }

    #[test]
    fn a_form_is_known_by_its_suffix() {
        for (text, form) in [
            ("64", Form::Decimal),
            ("64M", Form::Decimal),
            ("1E", Form::Decimal),
            ("100m", Form::Decimal),
            ("64Mi", Form::Binary),
            ("1Ei", Form::Binary),
            ("129e6", Form::Exponent),
            ("1E3", Form::Exponent),
            ("100e-3", Form::Exponent),
        ] {
            assert_eq!(Form::of(text), form, "{text}");
        }
    }
}
