//! The text that Prometheus reads. Source: its exposition formats, version 0.0.4, as `prometheus/common/expfmt` writes it.

use std::fmt::Write as _;

use jiff::Timestamp;

/// What kind of number a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One that goes up and down.
    Gauge,
    /// One that only grows.
    Counter,
}

/// Labels of a line, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Labels(Vec<(&'static str, String)>);

impl Labels {
    /// Labels with values that are escaped here.
    pub(super) fn new<'a>(labels: impl IntoIterator<Item = (&'static str, &'a str)>) -> Self {
        let mut all: Vec<_> = labels
            .into_iter()
            .map(|(name, value)| (name, format!("{name}=\"{}\"", escaped(value))))
            .collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        Self(all)
    }
}

/// The text, family by family.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a family.
    pub(super) fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        // A String takes everything.
        let _written = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A line with the labels of what it is of, further labels, and a time where it has one.
    pub(super) fn line(&mut self, name: &str, of: &Labels, more: &Labels, value: f64, at: Option<Timestamp>) {
        self.0.push_str(name);
        let (mut first, mut second) = (of.0.iter().peekable(), more.0.iter().peekable());
        let mut between = '{';
        loop {
            let next = match (first.peek(), second.peek()) {
                (Some(one), Some(other)) if one.0 <= other.0 => first.next(),
                (_, Some(_)) => second.next(),
                (Some(_), None) => first.next(),
                (None, None) => None,
            };
            let Some((_, label)) = next else { break };
            self.0.push(between);
            self.0.push_str(label);
            between = ',';
        }
        if between == ',' {
            self.0.push('}');
        }
        self.0.push(' ');
        push_number(&mut self.0, value);
        if let Some(at) = at {
            let _written = write!(self.0, " {}", at.as_millisecond());
        }
        self.0.push('\n');
    }

    /// All of it.
    pub(super) fn into_text(self) -> String {
        self.0
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// As Go writes it: `strconv.FormatFloat(value, 'g', -1, 64)`.
fn push_number(text: &mut String, value: f64) {
    if !value.is_finite() {
        text.push_str(if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        });
        return;
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // A shortest form has an exponent from a million on, and below a ten-thousandth. A String takes everything.
    let _written = if (-4..6).contains(&exponent) {
        write!(text, "{value}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(text, "{digits}e{sign}{:02}", exponent.abs())
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_go_writes_them() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.5, "0.5"),
            (100_000.0, "100000"),
            (123_456.0, "123456"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (1_234_567.25, "1.23456725e+06"),
            (10_697_101_312.0, "1.0697101312e+10"),
            (18_929.910_690_58, "18929.91069058"),
            (0.000_1, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-9, "1.5e-09"),
            (1e100, "1e+100"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, expected) in cases {
            let mut text = String::new();
            push_number(&mut text, value);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn labels_are_sorted_and_escaped() {
        let mut text = Exposition::default();
        let of = Labels::new([("pod", "a\"b\\c\nd"), ("id", "/")]);
        let at = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        text.family("f", "Help.", Kind::Counter);
        text.line("f", &of, &Labels::new([("device", "x"), ("name", "")]), 2.0, Some(at));
        text.line("f", &of, &Labels::default(), 1.5, None);
        text.line("f", &Labels::default(), &Labels::default(), 0.0, None);
        let expected = "# HELP f Help.\n# TYPE f counter\n\
                        f{device=\"x\",id=\"/\",name=\"\",pod=\"a\\\"b\\\\c\\nd\"} 2 1700000000123\n\
                        f{id=\"/\",pod=\"a\\\"b\\\\c\\nd\"} 1.5\nf 0\n";
        assert_eq!(text.into_text(), expected);
    }
}
