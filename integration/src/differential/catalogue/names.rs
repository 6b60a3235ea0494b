//! Host names, `/etc/hosts` and `/etc/resolv.conf`.

use serde_json::{Value, json};

use crate::differential::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let of = |name: &str, fields: Value| Case::telling(name, json!({}), fields);
    let config = json!({ "nameservers": ["192.0.2.7", "192.0.2.8"], "searches": ["a.example", "b.example"],
        "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] });
    let aliases = json!([{ "ip": "192.0.2.1", "hostnames": ["one", "uno"] }, { "ip": "192.0.2.2", "hostnames": ["two"] },
        { "ip": "2001:db8::1", "hostnames": ["six"] }]);
    vec![
        of("hostname", json!({ "hostname": "given" })),
        of("subdomain", json!({ "subdomain": "sub" })),
        of("hostname-and-subdomain", json!({ "hostname": "given", "subdomain": "sub" })),
        of("hostname-as-fqdn", json!({ "hostname": "given", "subdomain": "sub", "setHostnameAsFQDN": true })),
        of("hostname-as-fqdn-alone", json!({ "setHostnameAsFQDN": true })),
        of("hostname-override", json!({ "hostnameOverride": "other.example" })),
        of("hostname-of-a-pod-with-a-name-that-is-as-long-as-names-of-pods", json!({})),
        of("host-aliases", json!({ "hostAliases": aliases })),
        of("host-aliases-on-host-network", json!({ "hostAliases": aliases, "hostNetwork": true })),
        of("dns-cluster-first", json!({ "dnsPolicy": "ClusterFirst" })),
        of("dns-default", json!({ "dnsPolicy": "Default" })),
        of("dns-config", json!({ "dnsConfig": config })),
        of("dns-none", json!({ "dnsPolicy": "None", "dnsConfig": config })),
        of(
            "dns-default-with-config",
            json!({ "dnsPolicy": "Default", "dnsConfig": { "searches": ["x.example"], "options": [{ "name": "ndots", "value": "1" }] } }),
        ),
        of(
            "dns-host-network",
            json!({ "hostNetwork": true, "dnsConfig": { "options": [{ "name": "rotate" }] } }),
        ),
        of(
            "dns-too-many",
            json!({ "dnsConfig": { "nameservers": ["192.0.2.7", "192.0.2.8"], "searches": (0..29).map(|n| format!("s{n}.example")).collect::<Vec<_>>() } }),
        ),
        of(
            "hostname-on-host-network",
            json!({ "hostNetwork": true, "hostname": "given", "subdomain": "sub" }),
        ),
    ]
}
