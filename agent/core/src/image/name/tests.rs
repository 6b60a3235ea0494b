use proptest::prelude::*;

use super::*;

const HEX: &str = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

#[test]
fn names_as_people_write_them() {
    let digest = format!("sha256:{HEX}");
    for (text, expected) in [
        ("busybox", "docker.io/library/busybox:latest".to_owned()),
        ("busybox:1.36", "docker.io/library/busybox:1.36".into()),
        ("user/app", "docker.io/user/app:latest".into()),
        ("docker.io/busybox", "docker.io/library/busybox:latest".into()),
        ("docker.io/library/busybox", "docker.io/library/busybox:latest".into()),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest".into()),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10".into()),
        ("localhost/app", "localhost/app:latest".into()),
        ("localhost:5000/app:v1", "localhost:5000/app:v1".into()),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest".into()),
        ("[::1]:5000/app", "[::1]:5000/app:latest".into()),
        ("[fd00::1]/app", "[fd00::1]/app:latest".into()),
        ("Host/app", "Host/app:latest".into()),
        ("host/app", "docker.io/host/app:latest".into()),
        ("a.b-c.d:80/x__y/z-----w/v.u", "a.b-c.d:80/x__y/z-----w/v.u:latest".into()),
        (&format!("busybox@{digest}"), format!("docker.io/library/busybox@{digest}")),
        (&format!("busybox:1@{digest}"), format!("docker.io/library/busybox@{digest}")),
        (&format!("busybox@sha512:{HEX}{HEX}"), format!("docker.io/library/busybox@sha512:{HEX}{HEX}")),
        ("app:_A-b.C", "docker.io/library/app:_A-b.C".into()),
        (&format!("app:{}", "t".repeat(128)), format!("docker.io/library/app:{}", "t".repeat(128))),
        (&HEX[1..], format!("docker.io/library/{}:latest", &HEX[1..])),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
    }
}

#[test]
fn parts_of_a_name() {
    let name = parse(&format!("r.example:5000/a/b:v1@sha256:{HEX}")).unwrap();
    assert_eq!((name.domain.as_str(), name.path.as_str()), ("r.example:5000", "a/b"));
    assert_eq!(name.tag.as_deref(), Some("v1"));
    assert_eq!(name.digest, Some(format!("sha256:{HEX}")));
    assert_eq!(name.repository(), "r.example:5000/a/b");
    assert!(!name.is_movable());
    let name = parse("busybox").unwrap();
    assert_eq!((name.tag.as_deref(), name.is_movable()), (None, true));
}

#[test]
fn a_name_without_tag_and_digest_is_as_written() {
    let digest = format!("sha256:{HEX}");
    for (text, expected) in [
        ("busybox", "busybox"),
        ("busybox:1.36", "busybox"),
        ("docker.io/busybox", "docker.io/busybox"),
        ("localhost:5000/app", "localhost:5000/app"),
        ("localhost:5000/app:v1", "localhost:5000/app"),
        (&format!("busybox@{digest}"), "busybox"),
        (&format!("r.io:80/a/b:1@{digest}"), "r.io:80/a/b"),
        (&digest, "sha256"),
    ] {
        assert_eq!(bare(text).unwrap(), expected, "{text}");
    }
    bare("a.io/").unwrap_err();
}

#[test]
fn an_id_is_kept_under_itself() {
    let id = format!("sha256:{HEX}");
    let cut = &id[..id.len() - 1];
    for (text, expected) in [
        (id.as_str(), id.clone()),
        (cut, format!("docker.io/library/{cut}")),
        ("busybox", "docker.io/library/busybox:latest".into()),
        (&format!("busybox@{id}"), format!("docker.io/library/busybox@{id}")),
    ] {
        assert_eq!(kept_under(text), Ok(expected), "{text}");
    }
    kept_under("a.io/").unwrap_err();
}

#[test]
fn hostile_and_broken_names() {
    let upper = HEX.to_uppercase();
    for text in [
        "",
        " ",
        ":",
        "@",
        "/",
        ":tag",
        "@sha256:x",
        "busybox:",
        "busybox@",
        "busybox@sha256",
        "busybox@sha256:",
        "busybox@sha256:abc",
        &format!("busybox@md5:{HEX}"),
        &format!("busybox@sha256:{upper}"),
        &format!("busybox@sha512:{HEX}"),
        &format!("busybox@sha256:{HEX}@sha256:{HEX}"),
        HEX,
        "Busybox",
        "user/App",
        "busybox:a b",
        "busybox:-x",
        "busybox:.x",
        "busybox:a/b",
        "busybox:1:2",
        "busy box",
        " busybox",
        "busybox\n",
        "busybox\0",
        "-busybox",
        "busybox-",
        "a//b",
        "a/",
        "/a",
        "a/../b",
        "../a",
        "./a",
        "a/.b",
        "a..b/c",
        "a___b",
        "a._b",
        "docker.io/",
        "docker.io//x",
        "http://host/app",
        "host.:80/app",
        "-host.x/app",
        "host.x:/app",
        "host.x:8a/app",
        "[::1/app",
        "[]/app",
        "[::1]x/app",
        "[::g]/app",
        "é",
        "a/é",
        &format!("app:{}", "t".repeat(129)),
        &"a".repeat(256),
        &format!("{}.x/a", "h".repeat(256)),
    ] {
        let error = parse(text).map(|name| name.to_string()).unwrap_err();
        assert_eq!(error.text, text[..text.floor_char_boundary(510)], "{text:?}");
    }
}

#[test]
fn a_status_shows_the_first_tag_and_the_first_digest() {
    let digest = |repository: &str| format!("{repository}@sha256:{HEX}");
    let (hub, mirror) = (digest("docker.io/library/busybox"), digest("mirror.example/busybox"));
    let tagged = format!("z.example/busybox:1@sha256:{HEX}");
    let id = format!("sha256:{HEX}");
    let one = "docker.io/library/busybox:1";
    type Case<'a> = (Vec<&'a str>, Option<&'a str>, Option<&'a str>);
    let cases: [Case<'_>; 8] = [
        (vec![], None, None),
        (vec![&id, "docker.io/library/busybox"], None, None),
        (vec![one, &id, &hub], Some(one), Some(&hub)),
        (vec!["docker.io/library/busybox:latest", &hub, one], Some(one), Some(&hub)),
        (vec!["mirror.example/busybox:1", &mirror, &hub, one], Some(one), Some(&hub)),
        (vec![&mirror, &id], None, Some(&mirror)),
        (vec![&hub, &tagged], None, Some(&tagged)),
        (vec!["busybox:1", "not a name"], Some(one), None),
    ];
    for (names, tag, digest) in cases {
        let expected = (tag.map(str::to_owned), digest.map(str::to_owned));
        assert_eq!(shown_of(names.iter().copied()), expected, "{names:?}");
    }
}

#[test]
fn words_of_an_error() {
    for (text, why) in [
        ("User/App", "invalid reference format: repository name (App) must be lowercase"),
        ("UPPER:1", "invalid reference format: repository name (library/UPPER) must be lowercase"),
        ("a:b:c", "invalid reference format"),
        (HEX, &format!("invalid repository name ({HEX}), cannot specify 64-byte hexadecimal strings")),
        (&format!("app@sha256:{}", &HEX[..40]), "invalid checksum digest length"),
        (&format!("app@sha256:{HEX}{HEX}"), "invalid checksum digest length"),
        (&format!("app@sha512:{HEX}"), "invalid checksum digest length"),
        (&format!("app:1@sha256:{}", HEX.to_uppercase()), "invalid checksum digest format"),
        (&format!("app@md5:{}", &HEX[..32]), "unsupported digest algorithm"),
        (&format!("app@sha256+b64u:{HEX}"), "unsupported digest algorithm"),
        (&format!("app:1@SHA256:{HEX}"), "invalid checksum digest format"),
        (
            &format!("app@SHA256:{HEX}"),
            "invalid reference format: repository name (library/app@SHA256) must be lowercase",
        ),
        (&format!("app@sha256:{}", &HEX[..31]), "invalid reference format"),
        (&format!("app@2sha:{HEX}"), "invalid reference format"),
        (&format!("app@sha--256:{HEX}"), "invalid reference format"),
        (&format!("app@sha256:{}", "g".repeat(64)), "invalid reference format"),
        (&format!("app:-@sha256:{}", &HEX[..40]), "invalid reference format"),
        (&format!("a/{}", "a".repeat(256)), "repository name must not be more than 255 characters"),
    ] {
        let told = parse(text).map(|_| ()).unwrap_err().to_string();
        assert_eq!(told, format!("couldn't parse image name {text:?}: {why}"));
    }
    assert_eq!(parse(&"é".repeat(100_000)).map(|_| ()).unwrap_err().text.len(), 510);
}

proptest! {
    #[test]
    fn anything_is_a_name_or_an_error(text in "\\PC{0,80}") {
        let _either = parse(&text);
    }

    #[test]
    fn what_is_written_out_reads_the_same(text in "([a-zA-Z0-9.:-]{1,8}/)?[a-z0-9._-]{1,8}(/[a-z0-9._-]{1,8})?(:[A-Za-z0-9._-]{1,8})?") {
        if let Ok(name) = parse(&text) {
            let written = name.to_string();
            let again = parse(&written).unwrap();
            prop_assert_eq!(again.to_string(), written);
            prop_assert!(!name.path.contains("..") && !name.path.starts_with('/'));
        }
    }
}
