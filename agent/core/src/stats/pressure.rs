//! Pressure stall information. Source: Linux, `Documentation/accounting/psi.rst`.

/// How tasks wait for a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    /// All of them at once.
    pub full: Pressure,
    /// At least one.
    pub some: Pressure,
}

/// One line of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Of the last minute.
    pub avg60: f64,
    /// Of the last five minutes.
    pub avg300: f64,
    /// In all, in microseconds.
    pub total_us: u64,
}

impl Psi {
    /// What a file of pressure says; `None` where it says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut psi = Self::default();
        let mut is_said = false;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let pressure = match words.next() {
                Some("some") => &mut psi.some,
                Some("full") => &mut psi.full,
                _ => continue,
            };
            *pressure = Pressure::of(words)?;
            is_said = true;
        }
        is_said.then_some(psi)
    }
}

impl Pressure {
    fn of<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut pressure = Self::default();
        for word in words {
            let (name, value) = word.split_once('=')?;
            match name {
                "avg10" => pressure.avg10 = percent(value)?,
                "avg60" => pressure.avg60 = percent(value)?,
                "avg300" => pressure.avg300 = percent(value)?,
                "total" => pressure.total_us = value.parse().ok()?,
                _ => {}
            }
        }
        Some(pressure)
    }
}

fn percent(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read_and_what_is_malformed_is_none() {
        let text = "some avg10=0.94 avg60=11.66 avg300=24.39 total=4396854366\n\
                    full avg10=0.00 avg60=0.00 avg300=1.50 total=7 new=1\n";
        let some = Pressure { avg10: 0.94, avg60: 11.66, avg300: 24.39, total_us: 4_396_854_366 };
        let full = Pressure { avg300: 1.5, total_us: 7, ..Pressure::default() };
        assert_eq!(Psi::parse(text), Some(Psi { full, some }));
        // CPU pressure of old kernels has no second line.
        assert_eq!(
            Psi::parse("some avg10=0 total=3").map(|psi| (psi.some.total_us, psi.full.total_us)),
            Some((3, 0))
        );
        for text in
            ["", "\n", "other avg10=0", "some avg10=nan", "some avg10", "full total=-1", "some avg60=inf"]
        {
            assert_eq!(Psi::parse(text), None, "{text}");
        }
    }
}
