use proptest::prelude::*;

use super::*;

fn known() -> BTreeMap<String, String> {
    [("A", "1"), ("B", "two"), ("EMPTY", ""), ("SELF", "$(SELF)"), ("C D", "odd")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn expanded(input: &str, known: &BTreeMap<String, String>) -> String {
    expand_known(input, &mut Budget::whole(), known).unwrap()
}

/// Cases of `third_party/forked/golang/expansion/expand_test.go` in our words, and more.
#[test]
fn references() {
    for (input, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("$(A)$(B)", "1two"),
        ("x-$(A)-y", "x-1-y"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(EMPTY)", ""),
        ("$(C D)", "odd"),
        ("$$", "$"),
        ("$$$$", "$$"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$(A) $(A)", "$(A) 1"),
        ("$", "$"),
        ("a$", "a$"),
        ("$A", "$A"),
        ("${A}", "${A}"),
        ("$(A", "$(A"),
        ("$(A$(B)", "$(A$(B)"),
        ("$((A))", "$((A))"),
        ("$()", "$()"),
        ("$(A)(B)", "1(B)"),
        ("\\$(A)", "\\1"),
        ("$é$(A)", "$é1"),
        ("$(SELF)", "$(SELF)"),
        ("`id` $(A)", "`id` 1"),
    ] {
        assert_eq!(expanded(input, &known()), expected, "{input:?}");
    }
}

#[test]
fn a_path_needs_every_variable() {
    for (input, expected) in [
        ("$(A)/$(B)", Ok("1/two".to_owned())),
        ("$$(A)", Ok("$(A)".to_owned())),
        ("$(Z)$(EMPTY)$(Z)$(A)", Err(NoPath::Missing(vec!["EMPTY".to_owned(), "Z".to_owned()]))),
    ] {
        assert_eq!(expand_path(input, &mut Budget::whole(), &known()), expected, "{input}");
    }
}

/// Without a budget the first of them needs more memory than there is.
#[test]
fn what_texts_come_to_has_a_bound() {
    let mut doubled = BTreeMap::from([("V0".to_owned(), "xxxxxxxx".to_owned())]);
    let mut budget = Budget::whole();
    let failed = (1..=64).find(|number| {
        let before = number - 1;
        match expand_known(&format!("$(V{before})$(V{before})"), &mut budget, &doubled) {
            Ok(value) => doubled.insert(format!("V{number}"), value).is_some(),
            Err(TooLong) => true,
        }
    });
    assert_eq!(failed, Some(19), "V18 has 2 MiB, and as much came before");

    let known = BTreeMap::from([("A".to_owned(), "x".repeat(100 << 10))]);
    let word = "$(A)".repeat(250_000);
    assert_eq!(expand_known(&word, &mut Budget::whole(), &known), Err(TooLong));
    assert_eq!(expand_path(&word, &mut Budget::whole(), &known), Err(NoPath::TooLong(TooLong)));
    assert_eq!(expanded(&"$(A)".repeat(40), &known).len(), 40 * (100 << 10));

    let mut spent = Budget::whole();
    spent.count("x".repeat(EXPANDED_BYTES_MAX)).unwrap();
    assert_eq!(expand_known("", &mut spent, &known), Ok(String::new()));
    assert_eq!(expand_known("x", &mut spent, &known), Err(TooLong));
    assert_eq!(spent.count("x".to_owned()), Err(TooLong));
}

/// Looking behind each of them for an end takes minutes.
#[test]
fn references_that_are_not_closed_are_read_once() {
    let input = "$(".repeat(1 << 20);
    assert_eq!(expanded(&input, &known()), input);
    assert_eq!(expanded(&format!("$(A){input}"), &known()), format!("1{input}"));
}

proptest! {
    #[test]
    fn ends_and_is_no_longer_than_its_parts(input in "[$()A-Zé]{0,64}") {
        let known: BTreeMap<String, String> = [("A".to_owned(), "$(A)$(A)".to_owned())].into();
        let output = expanded(&input, &known);
        prop_assert!(output.len() <= input.len() * 8);
    }

    #[test]
    fn text_without_a_dollar_stays(input in "[^$]{0,64}") {
        prop_assert_eq!(expanded(&input, &known()), input);
    }

    #[test]
    fn a_doubled_dollar_hides_every_reference(input in "[^$]{0,64}") {
        let hidden = format!("$${input}");
        prop_assert_eq!(expanded(&hidden, &known()), format!("${input}"));
    }
}
