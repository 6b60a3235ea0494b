use super::*;
use crate::fixtures;

fn pod(name: &str, hostname: Option<&str>, subdomain: Option<&str>) -> Pod {
    let mut pod = fixtures::pod(vec![]);
    pod.name.name = name.into();
    pod.hostname = hostname.map(str::to_owned);
    pod.subdomain = subdomain.map(str::to_owned);
    pod
}

#[test]
fn short_name_and_domain() {
    let long = "a".repeat(62);
    let cut = |rest: &str| format!("{long}{rest}");
    for (pod, hostname, domain) in [
        (pod("web", None, None), "web", ""),
        (pod("web", Some(""), Some("")), "web", ""),
        (pod("web", Some("own"), None), "own", ""),
        (pod("web.1", None, None), "web.1", ""),
        (pod("web", Some("own"), Some("sub")), "own", "sub.shop.svc.cluster.local"),
        (pod(&cut("bc"), None, None), &*cut("b"), ""),
        (pod(&cut("-c"), None, None), &*long, ""),
        (pod(&format!("{}-.-.bc", "a".repeat(60)), None, None), &*"a".repeat(60), ""),
    ] {
        let expected = HostNames { hostname: hostname.into(), domain: domain.into() };
        assert_eq!(names(&pod, &fixtures::node()), Ok(expected), "{:?}", pod.name);
    }
}

/// Source: `GeneratePodHostNameAndDomain` of `pkg/kubelet/kubelet_pods.go`.
#[test]
fn an_override_takes_the_place_of_name_and_domain() {
    let long = format!("{}.example", "a".repeat(62));
    for (name, hostname) in [("db.example.com", "db.example.com"), (&*long, &*"a".repeat(62))] {
        let mut pod = pod("web", Some("own"), Some("sub"));
        pod.hostname_override = Some(name.to_owned());
        let expected = HostNames { hostname: hostname.into(), domain: String::new() };
        assert_eq!(names(&pod, &fixtures::node()), Ok(expected));
        assert_eq!(of(&pod, &fixtures::node()).as_deref(), Ok(hostname));
    }
}

#[test]
fn names_that_cannot_be_given() {
    for (pod, message) in [
        (pod("web", Some("Own"), None), "pod Hostname \"Own\" is not a valid DNS label"),
        (pod("web", Some("a.b"), None), "pod Hostname \"a.b\" is not a valid DNS label"),
        (pod("web", Some("-a"), None), "pod Hostname \"-a\" is not a valid DNS label"),
        (pod("web", Some("a\nb"), None), "pod Hostname \"a\\nb\" is not a valid DNS label"),
        (pod("web", None, Some("s_")), "pod Subdomain \"s_\" is not a valid DNS label"),
        (pod("", None, None), "hostname for pod \"\" was invalid: \"\""),
    ] {
        assert_eq!(names(&pod, &fixtures::node()).unwrap_err().to_string(), message);
    }
    let dashes = "-".repeat(64);
    assert!(matches!(names(&pod(&dashes, None, None), &fixtures::node()), Err(HostnameError::Empty { .. })));
    let long = "a".repeat(64);
    assert!(matches!(
        names(&pod("web", Some(&long), None), &fixtures::node()),
        Err(HostnameError::NotALabel { .. })
    ));
}

#[test]
fn what_the_kernel_is_told() {
    let node = fixtures::node();
    let mut pod = pod("web", None, Some("sub"));
    assert_eq!(of(&pod, &node).as_deref(), Ok("web"));
    pod.hostname_as_fqdn = true;
    assert_eq!(of(&pod, &node).as_deref(), Ok("web.sub.shop.svc.cluster.local"));
    pod.subdomain = None;
    assert_eq!(of(&pod, &node).as_deref(), Ok("web"));
    pod.network = NetworkMode::Node;
    assert_eq!(of(&pod, &node).as_deref(), Ok(""));
}

#[test]
fn a_full_name_of_64_characters_fits_one_of_65_does_not() {
    let node = fixtures::node();
    let mut pod = pod("web", None, Some("sub"));
    pod.hostname_as_fqdn = true;
    let domain = ".sub.shop.svc.cluster.local";
    pod.name.name = "a".repeat(64 - domain.len());
    assert_eq!(of(&pod, &node).unwrap().len(), 64);
    pod.name.name.push('a');
    let fqdn = format!("{}{domain}", pod.name.name);
    assert_eq!(
        of(&pod, &node).unwrap_err().to_string(),
        format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is \
             the max, 65 characters requested)"
        )
    );
}
