use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Thing {
    name: String,
    count: Option<i32>,
    on: Option<bool>,
    parts: Option<Vec<Part>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    port_number: u16,
}

fn one(text: &str) -> Node {
    let mut documents = parse("thing.yaml", text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn faults(text: &str) -> String {
    read::<Thing>(&one(text)).unwrap_err().to_string()
}

#[test]
fn yaml_and_json_read_alike() {
    let expected = Thing {
        name: "a\u{1F600}".to_owned(),
        count: Some(3),
        on: Some(true),
        parts: Some(vec![Part { port_number: 80 }]),
    };
    let yaml = "name: \"a\\U0001F600\"\ncount: 3\non: yes\nparts:\n- portNumber: 80\n";
    let json = "{\n\t\"name\": \"a\\ud83d\\ude00\",\n\t\"count\": 3, \"on\": true, \"parts\": [{\"portNumber\": 80}]}";
    assert_eq!(read::<Thing>(&one(yaml)), Ok(expected));
    assert_eq!(read::<Thing>(&one(json)).map(|thing| thing.name), Ok("a\u{1F600}".to_owned()));
}

#[test]
fn every_fault_names_file_line_and_field() {
    for (text, expected) in [
        (
            "name: a\nparts:\n- portNumber: 80\n- portNumbr: 1\n  portNumber: 2\n",
            "thing.yaml:4: parts[1].portNumbr: unknown field, did you mean `portNumber`?",
        ),
        ("name: 1\n", "thing.yaml:1: name: expected a string, found integer `1`: put it in quotes"),
        ("name: yes\n", "thing.yaml:1: name: expected a string, found boolean `true`: put it in quotes"),
        ("name: a\ncount: many\n", "thing.yaml:2: count: expected a whole number, found string \"many\""),
        ("name: a\ncount: 3000000000\n", "thing.yaml:2: count: expected i32, found integer `3000000000`"),
        (
            "name: a\nparts:\n- portNumber: 70000\n",
            "thing.yaml:3: parts[0].portNumber: expected u16, found integer `70000`",
        ),
        ("name: a\nparts: {}\n", "thing.yaml:2: parts: expected a list, found map"),
        ("name: a\non: 1\n", "thing.yaml:2: on: expected `true` or `false`, found integer `1`"),
        ("count: 1\n", "thing.yaml:1: field `name` is missing"),
        ("name: a\nfoo: 1\nbar: 2\n", "thing.yaml:2: foo: unknown field\nthing.yaml:3: bar: unknown field"),
    ] {
        assert_eq!(faults(text), expected);
    }
}

#[test]
fn what_cannot_be_parsed_says_where() {
    for (text, expected) in [
        ("a: 1\nb: 2\na: 3\n", "thing.yaml:3: `a` is given twice, first in line 1"),
        ("? [a]\n: 1\n", "thing.yaml:1: a key must be a string"),
        ("<<: 1\n", "thing.yaml:1: `<<` takes a map or a list of maps"),
    ] {
        assert_eq!(parse("thing.yaml", text).unwrap_err().to_string(), expected);
    }
    let broken = parse("thing.yaml", "a: 1\n b: 2\n").unwrap_err();
    assert_eq!(broken.place.map(|place| place.line), Some(2));
}

#[test]
fn several_documents_and_empty_ones() {
    let documents = parse("many.yaml", "---\n# nothing\n---\nname: a\n---\nname: b\n...\n").unwrap();
    let names: Vec<_> = documents.iter().map(|document| document.get("name").and_then(Node::text)).collect();
    assert_eq!(names, [Some("a"), Some("b")]);
    assert!(parse("empty.yaml", "").unwrap().is_empty());
}

#[test]
fn anchors_aliases_and_merge_keys_expand() {
    let node = one("base: &base {name: a, count: 1}\nuse:\n  <<: *base\n  count: 2\n");
    assert_eq!(node.nearest("use.name").text(), Some("a"));
    assert_eq!(read::<Thing>(node.get("use").unwrap()).unwrap().count, Some(2));
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = level - 1;
        let refs = vec![format!("*a{before}"); 10].join(", ");
        text = format!("{text}a{level}: &a{level} [{refs}]\n");
    }
    let fault = parse("bomb.yaml", &text).unwrap_err();
    assert!(fault.message.contains("aliases included"), "{fault}");
}

#[test]
fn deep_nesting_is_refused_before_the_stack_is_used_up() {
    for text in ["[".repeat(100_000), "- ".repeat(100_000)] {
        let fault = parse("deep.yaml", &text).unwrap_err();
        assert_eq!(fault.place.map(|place| place.line), Some(1));
    }
}

#[test]
fn nearest_finds_the_closest_place() {
    let node = one("a:\n  b:\n  - c: 1\n  - d: 2\n");
    for (path, line) in [("a.b[1].d", 4), ("a.b[1].missing", 4), ("a.b[7].c", 3), ("a.x.y", 2), ("", 1)] {
        assert_eq!(node.nearest(path).place.line, line, "{path}");
    }
}

#[test]
fn near_misses_get_a_suggestion_and_far_ones_none() {
    let known = ["staticPodPath", "clusterDNS", "podPidsLimit"];
    for (written, expected) in [
        ("staticPodPat", Some("staticPodPath")),
        ("clusterDns", Some("clusterDNS")),
        ("StaticPodPath", Some("staticPodPath")),
        ("foo", None),
        ("", None),
    ] {
        assert_eq!(suggestion(written, &known), expected, "{written}");
    }
}
