//! URIs, good and hostile.

use super::*;

#[test]
fn stock_forms_are_read_as_the_stock_shim_reads_them() {
    assert_eq!(StreamUri::parse(""), Ok(StreamUri::Null));
    assert_eq!(StreamUri::parse("/run/f"), Ok(StreamUri::Fifo("/run/f".into())));
    assert_eq!(StreamUri::parse("fifo:///run/f"), Ok(StreamUri::Fifo("/run/f".into())));
    assert_eq!(StreamUri::parse("file:///l.txt"), Ok(StreamUri::File("/l.txt".into())));
    assert_eq!(StreamUri::parse("file:///a%20b?x#y"), Ok(StreamUri::File("/a b".into())));
    assert_eq!(StreamUri::parse("/run/a%20b?x#y"), Ok(StreamUri::Fifo("/run/a%20b?x#y".into())));
    assert_eq!(StreamUri::parse("tcp://x"), Err(UriError::Scheme("tcp://x".to_owned())));
    assert_eq!(StreamUri::parse("tcp:///x"), Err(UriError::Scheme("tcp:///x".to_owned())));
    assert_eq!(StreamUri::parse("rel"), Err(UriError::Relative("rel".to_owned())));
}

#[test]
fn a_logging_program_gets_the_arguments_that_go_would_give_it() {
    let table: [(&str, &[&str]); 8] = [
        ("", &[]),
        ("?-a=b&flag", &["-a", "b", "flag", ""]),
        ("?-c=printf%20x%20%3E%265", &["-c", "printf x >&5"]),
        ("?a=b+c&d+e=%2B", &["a", "b c", "d e", "+"]),
        ("?a=1&b=2&a=3", &["a", "1", "b", "2"]),
        ("?a;b=1&c=%zz&d=2", &["d", "2"]),
        ("?a=b#c=d", &["a", "b"]),
        ("?a=b=c", &["a", "b=c"]),
    ];
    for (query, arguments) in table {
        for (scheme, readiness) in [("binary", Readiness::ByClosing), ("binary-v2", Readiness::ByWriting)] {
            let uri = format!("{scheme}:///opt/log%67er{query}");
            let arguments = arguments.iter().map(OsString::from).collect();
            let program = Program { path: "/opt/logger".into(), arguments, readiness };
            assert_eq!(StreamUri::parse(&uri), Ok(StreamUri::Binary(program)), "{uri}");
        }
    }
}

#[test]
fn hostile_paths_are_refused() {
    type Refusal = fn(String) -> UriError;
    let long = format!("/{}", "l".repeat(PATH_BYTES_MAX));
    let table: [(&str, Refusal); 9] = [
        ("rel", UriError::Relative),
        ("./rel", UriError::Relative),
        ("/run/../etc/passwd", UriError::Upward),
        ("/..", UriError::Upward),
        ("/a\0b", UriError::NoPath),
        (&long, UriError::NoPath),
        ("", UriError::Relative),
        ("host/file", UriError::Relative),
        (" /file", UriError::Relative),
    ];
    for (path, refusal) in table {
        for scheme in ["", "fifo://", "file://", "binary://", "binary-v2://", "cri-log://"] {
            let uri = format!("{scheme}{path}");
            if !uri.is_empty() {
                assert_eq!(StreamUri::parse(&uri), Err(refusal(uri.clone())), "{uri:?}");
            }
        }
    }
    for (uri, refusal) in [
        ("file:///a%2e%2E/..%2fb", UriError::Upward as Refusal),
        ("file:///a%00b", UriError::NoPath),
        ("binary:///l?a=%00", UriError::NoPath),
        ("binary-v2:///l%", UriError::Escape),
        ("file:///l%4", UriError::Escape),
        ("file:///l%+4", UriError::Escape),
        ("BINARY:///l", UriError::Scheme),
    ] {
        assert_eq!(StreamUri::parse(uri), Err(refusal(uri.to_owned())));
    }
}

#[test]
fn a_cri_log_has_limits() {
    let uri = "cri-log:///var/log/pods/p/c/0.log?max_size=1000&max_files=5&max_line=100";
    let Ok(StreamUri::CriLog(options)) = StreamUri::parse(uri) else { panic!("expected a log") };
    assert_eq!(options.path, PathBuf::from("/var/log/pods/p/c/0.log"));
    assert_eq!((options.size_max.map(NonZeroU64::get), options.files_max), (Some(1000), 5));
    assert_eq!(options.line_bytes_max.get(), 100);
    for bad in ["max_line=0", "max_line=1048577", "max_files=1", "max_size=-1", "max_size=x", "frob=1"] {
        StreamUri::parse(&format!("cri-log:///l?{bad}")).expect_err(bad);
    }
}

#[test]
fn stdin_comes_from_a_fifo_or_from_attached_clients() {
    assert_eq!(StdinUri::parse("attach:"), Ok(StdinUri::Attach { once: false }));
    assert_eq!(StdinUri::parse("attach:?once=true"), Ok(StdinUri::Attach { once: true }));
    assert_eq!(StdinUri::parse("/f"), Ok(StdinUri::Fifo("/f".into())));
    StdinUri::parse("attach:?twice").expect_err("unknown parameter");
    StdinUri::parse("file:///f").expect_err("not an input");
}
