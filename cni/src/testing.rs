//! Generators shared by the property tests.

use proptest::prelude::*;
use serde_json::{Map, Value};

/// Any JSON value, with keys that the parsers look for.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("type".to_owned()),
        Just("cniVersion".to_owned()),
        Just("interfaces".to_owned()),
        Just("ips".to_owned()),
        Just("address".to_owned()),
        Just("interface".to_owned()),
        Just("ip4".to_owned()),
        Just("ip".to_owned()),
        Just("routes".to_owned()),
        Just("dst".to_owned()),
        Just("dns".to_owned()),
        Just("kind".to_owned()),
        Just("config".to_owned()),
        "[a-z]{0,5}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(Value::from("1.0.0")),
        Just(Value::from("0.2.0")),
        Just(Value::from("10.0.0.1/24")),
        ".{0,10}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}
