//! Forms that files of the kernel have.

/// A number; `max` is the largest one.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

/// Lines of a name and a number. A line of another form is passed over.
pub(super) fn keyed(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name, value.trim().parse().ok()?))
    })
}

/// The number of one name among such lines.
pub(super) fn value_of(text: &str, name: &str) -> Option<u64> {
    keyed(text).find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_none() {
        let cases = [
            ("17\n", Some(17)),
            ("max\n", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1\n", None),
            ("1.5", None),
            ("", None),
            ("1 2", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_of_other_forms_are_passed_over() {
        let text = "anon 5\nfile\n 7\nbad x\nhuge 99999999999999999999\nlast  8 \n";
        assert_eq!(keyed(text).collect::<Vec<_>>(), [("anon", 5), ("", 7), ("last", 8)]);
        assert_eq!(value_of(text, "last"), Some(8));
        assert_eq!(value_of(text, "file"), None);
    }
}
