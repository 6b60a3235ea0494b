//! Fields of an object in whatever form a server has sent it.

use serde_json::{Map, Value};

/// The map that a value is; what is none becomes an empty one.
pub(super) fn root(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            unreachable!("it was made one just now")
        }
    }
}

/// The same of a part, which is made when it is missing.
pub(super) fn child<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    root(parent.entry(name).or_insert_with(|| Value::Object(Map::new())))
}
