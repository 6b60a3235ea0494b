use proptest::prelude::*;

use super::*;

fn types(list: &NetworkList) -> Vec<&str> {
    list.plugins().iter().map(|plugin| plugin.kind.as_str()).collect()
}

#[test]
fn a_list_is_read() {
    let bytes = br#"{"name":"some-list","cniVersion":"0.3.1","disableCheck":true,
        "plugins":[{"type":"host-local","subnet":"10.0.0.1/24"},{"type":"bridge","mtu":1400}]}"#;
    let list = NetworkList::parse(bytes).unwrap();
    assert_eq!(list.name.as_str(), "some-list");
    assert_eq!(list.version, SpecVersion::V0_3_1);
    assert!(list.disable_check && !list.disable_gc);
    assert_eq!(types(&list), ["host-local", "bridge"]);
    assert_eq!(list.plugins()[1].conf()["mtu"], 1400);
    assert_eq!(list.bytes(), bytes);
}

#[test]
fn flags_are_booleans_or_their_names() {
    let disable_check = |value: &str| {
        let bytes = format!(r#"{{"name":"n","disableCheck":{value},"plugins":[{{"type":"t"}}]}}"#);
        NetworkList::parse(bytes.as_bytes()).map(|list| list.disable_check)
    };
    for (value, expected) in
        [("true", true), ("false", false), (r#""True""#, true), (r#""false""#, false), (r#""FALSE""#, false)]
    {
        assert_eq!(disable_check(value), Ok(expected), "{value}");
    }
    for value in [r#""adsasdasdsa""#, "1", "null", r#""""#, "[]"] {
        assert!(
            matches!(disable_check(value), Err(ConfigError::WrongType { key, .. }) if key == "disableCheck")
        );
    }
}

/// The matrix of libcni's conf_test.go for `plugins`, `loadOnlyInlinedPlugins` and the folder.
#[test]
fn inlined_and_folder_plugins_merge() {
    let a = r#""plugins":[{"type":"a"}]"#;
    let only = r#""loadOnlyInlinedPlugins":true"#;
    let both = format!("{a},{only}");
    type Case<'a> = (&'a str, &'a [&'a str], Result<&'a [&'a str], ConfigError>);
    let table: [Case<'_>; 6] = [
        (only, &["b"], Err(ConfigError::OnlyInlinedWithoutPlugins)),
        (r#""x":0"#, &[], Err(ConfigError::NoPlugins)),
        (r#""x":0"#, &["b"], Ok(&["b"])),
        (a, &[], Ok(&["a"])),
        (a, &["b", "c"], Ok(&["a", "b", "c"])),
        (both.as_str(), &["b"], Ok(&["a"])),
    ];
    for (keys, folder, expected) in table {
        let result = ParsedList::parse(format!(r#"{{"name":"n","cniVersion":"1.0.0",{keys}}}"#).as_bytes())
            .and_then(|parsed| {
                let found = match parsed.folder() {
                    Folder::Ignored => Vec::new(),
                    Folder::Merged => folder
                        .iter()
                        .map(|kind| Plugin::parse(format!(r#"{{"type":"{kind}"}}"#).as_bytes()).unwrap())
                        .collect(),
                };
                parsed.with(found)
            });
        match (&result, expected) {
            (Ok(list), Ok(expected)) => {
                assert_eq!(types(list), expected, "{keys}");
                let again = NetworkList::parse(list.bytes()).unwrap();
                assert_eq!(again.plugins(), list.plugins(), "the recorded bytes stand alone");
                assert_eq!(again.version, list.version);
            }
            (Err(error), Err(expected)) => assert_eq!(error, &expected, "{keys}"),
            (result, expected) => panic!("{keys}: {result:?}, not {expected:?}"),
        }
    }
}

#[test]
fn a_single_configuration_becomes_a_list_of_one() {
    let list =
        NetworkList::parse_single(br#"{"name":"some-plugin","cniVersion":"0.3.1","type":"foobar","k":[1]}"#)
            .unwrap();
    assert_eq!((list.name.as_str(), list.version), ("some-plugin", SpecVersion::V0_3_1));
    assert_eq!(types(&list), ["foobar"]);
    assert_eq!(list.plugins()[0].conf()["k"], json!([1]));
    assert_eq!(NetworkList::parse(list.bytes()).unwrap(), list);
}

#[test]
fn capabilities_are_those_set_to_true() {
    let plugin =
        Plugin::parse(br#"{"type":"t","capabilities":{"portMappings":true,"bandwidth":false,"mac":true}}"#)
            .unwrap();
    assert_eq!(plugin.capabilities, BTreeSet::from(["mac".to_owned(), "portMappings".to_owned()]));
    Plugin::parse(br#"{"type":"t","capabilities":{"mac":"yes"}}"#).unwrap_err();
}

#[test]
fn a_bad_configuration_says_what_is_wrong() {
    for (bytes, message) in [
        ("{", "it is not a JSON object: EOF while parsing an object at line 1 column 1"),
        ("[]", "it is not a JSON object: invalid type: sequence, expected a map at line 1 column 0"),
        (r#"{"plugins":[{"type":"a"}]}"#, r#"the key "name" is missing"#),
        (r#"{"name":7}"#, r#""name" must be a string, not 7"#),
        (r#"{"name":"n","plugins":{}}"#, r#""plugins" must be a list, not {}"#),
        (r#"{"name":"n","plugins":[]}"#, "it has no plugins"),
        (r#"{"name":"n","plugins":[{}]}"#, r#"plugin 0: the key "type" is missing"#),
        (
            r#"{"name":"n","cniVersions":["1.0.0",1],"plugins":[]}"#,
            r#""cniVersions" must be a list of strings, not 1"#,
        ),
        (
            r#"{"name":"n","cniVersion":"7.0.0","plugins":[{"type":"a"}]}"#,
            r#"CNI version "7.0.0" is not supported; supported are 0.1.0 to 1.1.0"#,
        ),
        (r#"{"name":"","plugins":[{"type":"a"}]}"#, "network name is empty"),
    ] {
        assert_eq!(NetworkList::parse(bytes.as_bytes()).unwrap_err().to_string(), message, "{bytes}");
    }
}

#[test]
fn cve_2021_20206_traversal_in_type_and_ipam_type_is_refused() {
    for plugin in [r#"{"type":"../../bin/sh"}"#, r#"{"type":"ok","ipam":{"type":"../sh"}}"#] {
        let list = format!(r#"{{"name":"n","plugins":[{plugin}]}}"#);
        let error = NetworkList::parse(list.as_bytes()).unwrap_err();
        assert!(matches!(error, ConfigError::Plugin { index: 0, .. }), "{error}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(NetworkList::parse(&bytes));
        drop(NetworkList::parse_single(&bytes));
    }

    #[test]
    fn parsing_arbitrary_values_never_panics(value in crate::testing::json()) {
        let wrapped = json!({"name": "n", "cniVersions": value, "plugins": value, "disableGC": value});
        drop(NetworkList::parse(wrapped.to_string().as_bytes()));
        let single = json!({"name": "n", "type": "t", "capabilities": value, "ipam": value});
        drop(NetworkList::parse_single(single.to_string().as_bytes()));
        drop(NetworkList::parse(value.to_string().as_bytes()));
    }
}
