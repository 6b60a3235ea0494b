use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(value: &Value) -> AddResult {
    AddResult::parse(value.to_string().as_bytes(), SpecVersion::V1_1_0).unwrap()
}

fn full() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "cni0", "mac": "00:11:22:33:44:55"},
            {"name": "eth0", "mac": "00:11:22:33:44:66", "mtu": 1500, "sandbox": "/run/netns/x",
             "socketPath": "/s", "pciID": "8086:9a01"},
        ],
        "ips": [
            {"interface": 1, "address": "fd00::2/64", "gateway": "fd00::1"},
            {"interface": 1, "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
            {"interface": 0, "address": "10.1.2.1/24"},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1400, "advmss": 1360, "priority": 3, "table": 50, "scope": 0},
            {"dst": "::/0", "gw": "fd00::1"},
        ],
        "dns": {"nameservers": ["10.96.0.10"], "domain": "d", "search": ["s"], "options": ["ndots:5"]},
    })
}

#[test]
fn the_newest_form_survives_a_round_trip() {
    assert_eq!(object(&full()).to_value(SpecVersion::V1_1_0).unwrap(), full());
}

#[test]
fn older_forms_say_what_they_can() {
    let result = object(&full());
    let mut v0_4 = full();
    v0_4["cniVersion"] = "0.4.0".into();
    v0_4["interfaces"][1] = json!({"name": "eth0", "mac": "00:11:22:33:44:66", "sandbox": "/run/netns/x"});
    for (index, version) in ["6", "4", "4"].into_iter().enumerate() {
        v0_4["ips"][index]["version"] = version.into();
    }
    assert_eq!(result.to_value(SpecVersion::V0_4_0).unwrap(), v0_4);
    assert_eq!(
        result.to_value(SpecVersion::V0_2_0).unwrap(),
        json!({
            "cniVersion": "0.2.0",
            "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}]},
            "ip6": {"ip": "fd00::2/64", "gateway": "fd00::1", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
            "dns": {"nameservers": ["10.96.0.10"], "domain": "d", "search": ["s"], "options": ["ndots:5"]},
        })
    );
}

#[test]
fn older_forms_are_understood() {
    let v0_2 = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "ip6": {"ip": "fd00::2/64"},
        "dns": {"nameservers": ["1.1.1.1"]},
    });
    let parsed = object(&v0_2);
    assert_eq!(parsed.to_value(SpecVersion::V0_2_0).unwrap(), v0_2);
    assert_eq!(parsed.ips.len(), 2);
    assert_eq!(parsed.routes, [Route::plain("0.0.0.0/0".parse().unwrap(), None)]);
    let v0_3 = json!({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.2.3/24"}], "dns": {}});
    assert_eq!(
        object(&v0_3).to_value(SpecVersion::V1_0_0).unwrap(),
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]})
    );
}

#[test]
fn a_result_without_an_address_has_no_oldest_form() {
    for version in [SpecVersion::V0_1_0, SpecVersion::V0_2_0] {
        let unaddressed = object(&json!({"interfaces": [{"name": "eth0"}]}));
        assert_eq!(unaddressed.to_value(version), Err(ResultError::NoAddress(version)));
        assert_eq!(AddResult::default().to_value(version).unwrap(), json!({"cniVersion": version}));
    }
}

#[test]
fn a_missing_version_is_the_configurations() {
    for bytes in [r#"{"ip4":{"ip":"10.0.0.1/8"}}"#, r#"{"cniVersion":"","ip4":{"ip":"10.0.0.1/8"}}"#] {
        assert_eq!(AddResult::parse(bytes.as_bytes(), SpecVersion::V0_2_0).unwrap().ips.len(), 1);
        assert_eq!(AddResult::parse(bytes.as_bytes(), SpecVersion::V1_0_0).unwrap().ips.len(), 0);
    }
    assert_eq!(AddResult::parse(b"null", SpecVersion::V1_0_0), Ok(AddResult::default()));
}

#[test]
fn nulls_and_empty_addresses_are_absent() {
    let result = object(&json!({"interfaces": null, "routes": null, "dns": null,
        "ips": [{"address": "10.0.0.1/8", "gateway": "", "interface": null}]}));
    assert_eq!(result.ips[0].gateway, None);
    assert_eq!(result.ips[0].interface, None);
}

#[test]
fn a_bad_result_says_what_is_wrong() {
    for (bytes, message) in [
        ("", "the result is not a JSON object: EOF while parsing a value at line 1 column 0"),
        ("[]", "the result is not a JSON object: it is another kind of JSON value"),
        (
            r#"{"cniVersion":"0.4567.0"}"#,
            r#"CNI version "0.4567.0" is not supported; supported are 0.1.0 to 1.1.0"#,
        ),
        (
            r#"{"ips":[{"address":"10.0.0.1"}]}"#,
            "the result is not one of CNI 1.1.0: \"10.0.0.1\" is not an address with a prefix length, such as 10.1.2.3/24",
        ),
        (
            r#"{"ips":[{"address":"10.0.0.1/8","interface":1}],"interfaces":[{"name":"eth0"}]}"#,
            "the result puts 10.0.0.1/8 on interface 1, but has 1 interfaces",
        ),
    ] {
        let error = AddResult::parse(bytes.as_bytes(), SpecVersion::V1_1_0).unwrap_err();
        assert_eq!(error.to_string(), message, "{bytes}");
    }
    let negative = br#"{"ips":[{"address":"10.0.0.1/8","interface":-1}]}"#;
    assert!(matches!(AddResult::parse(negative, SpecVersion::V1_1_0), Err(ResultError::Shape { .. })));
}

#[test]
fn pod_ips_are_those_of_the_interface_ipv4_first() {
    let ips = |value: &Value, name: &str| -> Vec<String> {
        object(value).pod_ips(&InterfaceName::new(name).unwrap()).iter().map(ToString::to_string).collect()
    };
    assert_eq!(ips(&full(), "eth0"), ["10.1.2.3", "fd00::2"]);
    assert_eq!(ips(&full(), "cni0"), ["10.1.2.1"]);
    assert_eq!(ips(&full(), "net1"), [""; 0]);
    let without_interfaces = json!({"ips": [{"address": "fd00::2/64"}, {"address": "10.0.0.2/8"}]});
    assert_eq!(ips(&without_interfaces, "eth0"), ["10.0.0.2", "fd00::2"]);
}

proptest! {
    #[test]
    fn parsing_never_panics_and_what_parses_can_be_written(value in crate::testing::json()) {
        for version in SpecVersion::ALL {
            if let Ok(result) = AddResult::parse(value.to_string().as_bytes(), version) {
                let written = result.to_value(SpecVersion::V1_1_0).unwrap();
                prop_assert_eq!(AddResult::parse(written.to_string().as_bytes(), version).unwrap(), result);
            }
        }
    }

    #[test]
    fn parsing_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        drop(AddResult::parse(&bytes, SpecVersion::NEWEST));
    }
}
