use super::{super::Kind, *};

const ON: Debugging = Debugging::On { logs: true };

fn container(uid: Option<&str>) -> ContainerPath {
    ContainerPath { pod: pod(uid), container: ContainerName::new("c") }
}

fn pod(uid: Option<&str>) -> PodPath {
    let name = PodName { namespace: "ns".to_owned(), name: "p.1".to_owned() };
    PodPath { name, uid: uid.map(PodUid::new) }
}

/// Method, path, subresources, endpoint.
fn routes() -> Vec<(&'static str, &'static str, &'static [&'static str], Endpoint)> {
    vec![
        ("GET", "/healthz", &["healthz", "proxy"], Endpoint::Health(HealthCheck::All)),
        ("GET", "/healthz/ping", &["healthz", "proxy"], Endpoint::Health(HealthCheck::Ping)),
        ("GET", "/healthz/log", &["healthz", "proxy"], Endpoint::Health(HealthCheck::Log)),
        ("GET", "/healthz/syncloop", &["healthz", "proxy"], Endpoint::Health(HealthCheck::SyncLoop)),
        ("GET", "/pods", &["pods", "proxy"], Endpoint::Pods),
        ("GET", "/pods/", &["pods", "proxy"], Endpoint::Pods),
        ("GET", "/runningpods/", &["pods", "proxy"], Endpoint::RunningPods),
        ("GET", "/runningpods", &["pods", "proxy"], Endpoint::RunningPods),
        ("GET", "/stats/summary", &["stats"], Endpoint::Summary),
        ("GET", "/metrics", &["metrics"], Endpoint::Metrics),
        ("GET", "/metrics/cadvisor", &["metrics"], Endpoint::MetricsOfCgroups),
        ("GET", "/metrics/resource", &["metrics"], Endpoint::MetricsOfResources),
        ("GET", "/metrics/probes", &["metrics"], Endpoint::MetricsOfProbes),
        ("GET", "/metrics/slis", &["metrics"], Endpoint::MetricsOfHealth),
        ("GET", "/containerLogs/ns/p.1/c", &["proxy"], Endpoint::ContainerLogs(container(None))),
        ("GET", "/exec/ns/p.1/c", &["proxy"], Endpoint::Exec(container(None))),
        ("POST", "/exec/ns/p.1/c", &["proxy"], Endpoint::Exec(container(None))),
        ("POST", "/exec/ns/p.1/0-A/c", &["proxy"], Endpoint::Exec(container(Some("0-A")))),
        ("GET", "/attach/ns/p.1/c", &["proxy"], Endpoint::Attach(container(None))),
        ("POST", "/attach/ns/p.1/0-A/c", &["proxy"], Endpoint::Attach(container(Some("0-A")))),
        ("POST", "/run/ns/p.1/c", &["proxy"], Endpoint::Run(container(None))),
        ("POST", "/run/ns/p.1/0-A/c", &["proxy"], Endpoint::Run(container(Some("0-A")))),
        ("GET", "/portForward/ns/p.1", &["proxy"], Endpoint::PortForward(pod(None))),
        ("POST", "/portForward/ns/p.1/0-A", &["proxy"], Endpoint::PortForward(pod(Some("0-A")))),
        ("GET", "/logs", &["log"], Endpoint::NodeLogs { path: String::new() }),
        ("GET", "/logs/", &["log"], Endpoint::NodeLogs { path: String::new() }),
        ("GET", "/logs/a/b%20c", &["log"], Endpoint::NodeLogs { path: "a/b c".to_owned() }),
        ("GET", "/logs/a/", &["log"], Endpoint::NodeLogs { path: "a".to_owned() }),
        ("GET", "/configz", &["configz", "proxy"], Endpoint::Configz),
        ("GET", "/%63onfigz", &["configz", "proxy"], Endpoint::Configz),
    ]
}

fn status(method: &str, path: &str, debugging: Debugging) -> Option<u16> {
    route(method, path, debugging).target.err().map(|refusal| refusal.status)
}

#[test]
fn a_path_means_one_endpoint_and_asks_for_its_subresources() {
    for (method, path, subresources, endpoint) in routes() {
        let verb = if method == "POST" { "create" } else { "get" };
        assert_eq!(
            route(method, path, ON),
            Route { verb, subresources, target: Ok(endpoint) },
            "{method} {path}"
        );
    }
}

/// The rows above are written for what they expect; what is asked of every endpoint is asked of these.
#[test]
fn every_example_is_answered_by_its_endpoint_and_every_endpoint_is_in_the_table() {
    for (kind, method, path) in Kind::all_examples() {
        let found = route(method, path, ON).target.map(|endpoint| endpoint.kind());
        assert_eq!(found, Ok(kind), "{method} {path}");
    }
    for kind in Kind::ALL {
        assert!(routes().iter().any(|(.., endpoint)| endpoint.kind() == *kind), "{kind:?}");
        assert!(!kind.examples().is_empty());
    }
}

#[test]
fn another_method_is_refused_and_asks_for_the_same() {
    for (_, path, subresources, endpoint) in routes() {
        let kind = endpoint.kind();
        for (method, verb) in [
            ("GET", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("HEAD", ""),
            ("OPTIONS", ""),
            ("CONNECT", ""),
            ("get", ""),
        ] {
            let route = route(method, path, ON);
            assert_eq!((route.verb, route.subresources), (verb, subresources), "{method} {path}");
            if kind.takes(method) {
                assert_eq!(route.target, Ok(endpoint.clone()), "{method} {path}");
                continue;
            }
            let refusal = route.target.unwrap_err();
            assert_eq!((refusal.status, refusal.text.as_str()), (405, "405: Method Not Allowed"));
            let allow = kind.methods().join(", ");
            let expected = if allow.is_empty() { vec![] } else { vec![("allow", allow)] };
            assert_eq!(refusal.headers, expected, "{method} {path}");
        }
    }
}

#[test]
fn methods_are_those_of_the_kubelet() {
    for (path, taken, refused) in [
        ("/healthz", &["GET", "HEAD", "POST", "PUT"][..], &["CONNECT"][..]),
        ("/metrics", &["GET", "HEAD", "POST"], &["CONNECT"]),
        ("/configz", &["GET", "HEAD", "POST"], &["CONNECT"]),
        ("/stats/summary", &["GET", "POST"], &["HEAD", "PUT"]),
        ("/pods", &["GET"], &["HEAD", "POST"]),
        ("/logs/x", &["GET"], &["HEAD", "POST"]),
        ("/exec/ns/p/c", &["GET", "POST"], &["HEAD", "PUT"]),
        ("/run/ns/p/c", &["POST"], &["GET", "HEAD"]),
    ] {
        for method in taken {
            assert_eq!(status(method, path, ON), None, "{method} {path}");
        }
        for method in refused {
            assert_eq!(status(method, path, ON), Some(405), "{method} {path}");
        }
    }
}

#[test]
fn what_is_not_there_is_not_found() {
    for path in [
        "/",
        "/x",
        "/healthz/",
        "/healthz/x",
        "/healthz/ping/",
        "/Pods",
        "/pods/x",
        "/podsx",
        "/stats",
        "/stats/",
        "/stats/summary/",
        "/metrics/",
        "/metrics/x",
        "/containerLogs/ns/p.1",
        "/containerLogs/ns/p.1/u/c",
        "/exec",
        "/exec/ns/p.1",
        "/exec/ns/p.1/u/c/x",
        "/exec/ns/p.1/c/",
        "/run/ns",
        "/portForward/ns",
        "/portForward/ns/p.1/u/x",
        "/portForward/ns/p.1/",
        "/configz/",
        "/debug/pprof/",
        "/debug/flags/v",
        "/checkpoint/ns/p.1/c",
        "/statusz",
        "/flagz",
        "/spec/",
        "/cri/x",
    ] {
        for method in ["GET", "POST"] {
            assert_eq!(status(method, path, ON), Some(404), "{path}");
        }
    }
}

#[test]
fn names_that_nothing_has_are_not_there() {
    let long = format!("/exec/ns/{}/c", "p".repeat(254));
    for path in [
        "/exec/Ns/p/c",
        "/exec/n.s/p/c",
        "/exec/ns/P/c",
        "/exec/ns/p../c",
        "/exec/ns/p/C",
        "/exec/ns/p/c.d",
        "/exec/ns/-p/c",
        "/exec/ns/p%00/c",
        "/exec/ns/p%20x/c",
        "/exec/ns/p/u.v/c",
        "/exec/ns/p/u%3Bv/c",
        "/exec/ns/%2e%2e/c",
        "/exec/ns/..%2fetc/c",
        "/portForward/ns/p_q",
        "/containerLogs/ns/p/c%0a",
        &long,
    ] {
        let status = status("GET", path, ON);
        assert!(matches!(status, Some(404 | 400)), "{path}: {status:?}");
    }
}

/// CVE-2025-0426: what fills the disk was answered on the port that asks nobody who they are.
#[test]
fn cve_2025_0426_the_read_only_port_has_nothing_for_debugging() {
    for (method, path, _, endpoint) in routes() {
        let refused = route(method, path, Debugging::Off).target.err();
        let expected = match endpoint {
            Endpoint::Health(_)
            | Endpoint::Pods
            | Endpoint::Summary
            | Endpoint::Metrics
            | Endpoint::MetricsOfCgroups
            | Endpoint::MetricsOfResources
            | Endpoint::MetricsOfProbes
            | Endpoint::MetricsOfHealth => None,
            Endpoint::Configz => Some(Refusal::new(404, NOT_FOUND)),
            Endpoint::RunningPods
            | Endpoint::ContainerLogs(_)
            | Endpoint::Exec(_)
            | Endpoint::Attach(_)
            | Endpoint::Run(_)
            | Endpoint::PortForward(_)
            | Endpoint::NodeLogs { .. } => Some(Refusal::new(405, "Debug endpoints are disabled.\n")),
        };
        assert_eq!(refused, expected, "{path}");
    }
    for path in ["/checkpoint/ns/p/c", "/debug/flags/v"] {
        assert_eq!(status("POST", path, Debugging::Off), Some(404), "{path}");
    }
    assert_eq!(status("GET", "/debug/pprof/heap", Debugging::Off), Some(405));
}

#[test]
fn logs_of_the_node_can_be_off_alone() {
    let off = Debugging::On { logs: false };
    for path in ["/logs", "/logs/", "/logs/a"] {
        let route = route("GET", path, off);
        assert_eq!(route.subresources, ["log"]);
        assert_eq!(route.target, Err(Refusal::new(405, "logs endpoint is disabled.\n")), "{path}");
    }
    assert_eq!(route("GET", "/configz", off).target, Ok(Endpoint::Configz));
}

/// What a path is authorized as is never less than what it is answered as: an endpoint that is reached has the subresources of its row.
#[test]
fn no_other_spelling_reaches_an_endpoint_for_less() {
    let spellings: [fn(&str) -> String; 8] = [
        |path| format!("/{path}"),
        |path| path.replacen('/', "//", 2),
        |path| format!("/metrics/..{path}"),
        |path| format!("/metrics/%2e%2e{path}"),
        |path| format!("/.{path}"),
        |path| format!("/metrics%2f..{path}"),
        |path| format!("{path}/../metrics"),
        |path| format!("{path}%00/metrics"),
    ];
    for (method, path, ..) in routes() {
        for spelled in spellings.map(|spelling| spelling(path)) {
            assert!(route(method, &spelled, ON).target.is_err(), "{spelled}");
        }
    }
}
