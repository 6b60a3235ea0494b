use proptest::prelude::*;

use super::*;

fn known() -> BTreeMap<String, String> {
    [("A", "1"), ("B", "two"), ("EMPTY", ""), ("SELF", "$(SELF)"), ("C D", "odd")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
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
        assert_eq!(expand_known(input, &known()), expected, "{input:?}");
    }
}

#[test]
fn a_path_needs_every_variable() {
    assert_eq!(expand_path("$(A)/$(B)", &known()), Ok("1/two".to_owned()));
    assert_eq!(expand_path("$$(A)", &known()), Ok("$(A)".to_owned()));
    assert_eq!(expand_path("$(Z)$(EMPTY)$(Z)$(A)", &known()), Err(vec!["EMPTY".to_owned(), "Z".to_owned()]));
}

proptest! {
    #[test]
    fn ends_and_is_no_longer_than_its_parts(input in "[$()A-Zé]{0,64}") {
        let known: BTreeMap<String, String> = [("A".to_owned(), "$(A)$(A)".to_owned())].into();
        let output = expand_known(&input, &known);
        prop_assert!(output.len() <= input.len() * 8);
    }

    #[test]
    fn text_without_a_dollar_stays(input in "[^$]{0,64}") {
        prop_assert_eq!(expand_known(&input, &known()), input);
    }

    #[test]
    fn a_doubled_dollar_hides_every_reference(input in "[^$]{0,64}") {
        let hidden = format!("$${input}");
        prop_assert_eq!(expand_known(&hidden, &known()), format!("${input}"));
    }
}
