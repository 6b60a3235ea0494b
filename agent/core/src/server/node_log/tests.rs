use super::*;

fn parsed(query: &str) -> Result<Option<NodeLogQuery>, String> {
    NodeLogQuery::parse(&Query::parse(query)).map_err(|faults| faults.text())
}

fn checked(query: &str, no_file: Option<&str>) -> Result<(), String> {
    parsed(query)?.map_or(Ok(()), |query| query.check(no_file).map_err(|faults| faults.text()))
}

#[test]
fn a_query_is_read_as_the_kubelet_reads_it() {
    let services = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let of = |names: &[&str]| NodeLogQuery {
        services: services(names),
        files: Vec::new(),
        options: Options::default(),
    };
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    for (query, expected) in [
        ("", None),
        ("foo=bar", None),
        ("sinceTime=&tailLines=&boot=&pattern=", None),
        ("query=foo&query=bar", Some(of(&["foo", "bar"]))),
        ("query=&query=foo&query=%20%20", Some(of(&["foo"]))),
        (
            "query=foo%2Fbar&query=a%5Cb",
            Some(NodeLogQuery { files: services(&["foo/bar", "a\\b"]), ..of(&[]) }),
        ),
        (
            "tailLines=100",
            Some(NodeLogQuery { options: Options { tail: Some(100), ..Options::default() }, ..of(&[]) }),
        ),
        (
            "query=foo&sinceTime=2022-12-04T22:15:00Z&untilTime=2022-12-04T23:15:00Z&boot=-1&pattern=foo",
            Some(NodeLogQuery {
                options: Options {
                    since: Some(time("2022-12-04T22:15:00Z")),
                    until: Some((time("2022-12-04T23:15:00Z"), "2022-12-04T23:15:00Z".to_owned())),
                    tail: None,
                    boot: Some(-1),
                    pattern: "foo".to_owned(),
                },
                ..of(&["foo"])
            }),
        ),
    ] {
        assert_eq!(parsed(query), Ok(expected), "{query}");
    }
    for (query, fault) in [
        ("query=", r#"query: Invalid value: [""]: may not be empty"#),
        ("query=%20&query=", r#"query: Invalid value: [" ",""]: may not be empty"#),
        ("query=a&sinceTime=x", r#"sinceTime: Invalid value: "x": invalid time format"#),
        ("query=a&untilTime=1", r#"untilTime: Invalid value: "1": invalid time format"#),
        ("query=a&boot=x", r#"boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax"#),
        (
            "query=a&tailLines=9223372036854775808",
            r#"tailLines: Invalid value: "9223372036854775808": strconv.Atoi: parsing "9223372036854775808": value out of range"#,
        ),
        (
            "boot=x&tailLines=y",
            r#"[boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax, tailLines: Invalid value: "y": strconv.Atoi: parsing "y": invalid syntax]"#,
        ),
    ] {
        assert_eq!(parsed(query), Err(fault.to_owned()), "{query}");
    }
}

#[test]
fn a_query_is_checked_in_the_words_of_the_kubelet() {
    for query in [
        "query=foo",
        "query=foo@1.service&query=a_b-c:d.E",
        "query=a&query=b&query=c&query=d",
        "query=foo&boot=0&tailLines=0",
        "query=foo&boot=-1&tailLines=100000&pattern=--root%3D/",
        "query=foo&sinceTime=2022-12-04T22:15:00Z&untilTime=2022-12-04T22:15:00Z",
        "query=foo%2Fbar.log",
    ] {
        assert_eq!(checked(query, None), Ok(()), "{query}");
    }
    let long = format!("query={}", "x".repeat(257));
    let long_fault = format!("query: Invalid value: \"{}\": length must be less than 256", "x".repeat(257));
    for (query, fault) in [
        ("tailLines=5", "query: Required value: cannot be empty with options"),
        ("query=a%20b", r#"query: Invalid value: "a b": input contains unsupported characters"#),
        ("query=foo%0A", r#"query: Invalid value: "foo\n": input contains unsupported characters"#),
        (
            "query=%24(x)&query=%24(x)",
            r#"query: Invalid value: "$(x)": input contains unsupported characters"#,
        ),
        (&long, &long_fault),
        ("query=a&query=b&query=c&query=d&query=e", "query: Too many: 5: must have at most 4 items"),
        ("query=a%2Fb&query=c", r#"query: Invalid value: "[a/b], [c]": cannot specify a file and service"#),
        (
            "query=a%2Fb&query=c%2Fd",
            r#"query: Invalid value: ["a/b","c/d"]: cannot specify more than one file"#,
        ),
        ("query=a%2Fb&tailLines=1", r#"query: Invalid value: ["a/b"]: cannot specify file with options"#),
        (
            "query=foo&sinceTime=2022-12-04T22:15:00Z&untilTime=2022-12-04T22:14:00Z",
            r#"untilTime: Invalid value: "2022-12-04T22:14:00Z": must be after `sinceTime`"#,
        ),
        ("query=foo&boot=1", "boot: Invalid value: 1: must be less than 1"),
        ("query=foo&tailLines=-1", "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"),
        (
            "query=foo&tailLines=100001&boot=2",
            "[boot: Invalid value: 2: must be less than 1, tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive]",
        ),
    ] {
        assert_eq!(checked(query, None), Err(fault.to_owned()), "{query}");
    }
    let fault = r#"query: Invalid value: ["a/b"]: statat a/b: no such file or directory"#;
    assert_eq!(checked("query=a%2Fb", Some("statat a/b: no such file or directory")), Err(fault.to_owned()));
}

#[test]
fn a_file_is_looked_for_only_where_nothing_else_is_wrong() {
    for (query, file) in [
        ("query=a%2Fb", Some("a/b")),
        ("query=a%2Fb&boot=0", None),
        ("query=a%2Fb&query=c", None),
        ("query=a%2Fb&query=c%2Fd", None),
        ("query=a", None),
    ] {
        assert_eq!(parsed(query).unwrap().unwrap().file(), file, "{query}");
    }
}

#[test]
fn arguments_of_journalctl_can_be_taken_for_no_others() {
    for (query, expected) in [
        ("query=foo", "--unit=foo"),
        ("query=foo&query=-bar", "--unit=foo --unit=-bar"),
        ("query=foo&tailLines=0", "--pager-end --lines=0 --unit=foo"),
        (
            "query=foo&sinceTime=1970-01-01T01:00:07.9%2B01:00&untilTime=1970-01-01T00:01:00Z",
            "--since=@7 --until=@60 --unit=foo",
        ),
        (
            "query=foo&pattern=--file%3D%2Fetc%2Fshadow&boot=-2",
            "--unit=foo --grep=--file=/etc/shadow --boot -2",
        ),
    ] {
        let query = parsed(query).unwrap().unwrap();
        let arguments = query.journal_arguments(&query.services).join(" ");
        assert_eq!(arguments, format!("--utc --no-pager --output=short-precise {expected}"));
    }
}

#[test]
fn a_service_is_in_the_journal_or_in_files() {
    assert!(is_in_journal("init.scope\nfoo.service\n", "foo"));
    assert!(!is_in_journal("foo.socket\n", "foo"));
    assert_eq!(files_of("foo"), ["foo", "foo.log", "foo/foo.log"]);
    assert_eq!(not_found("foo"), "\nlog not found for foo\n");
    assert_eq!(
        options_with_files(&["a".to_owned(), "b".to_owned()]),
        "\noptions present and query resolved to log files for [a b]\ntry without specifying options\n"
    );
}
