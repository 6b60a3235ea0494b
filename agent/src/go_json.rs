//! JSON as Go reads and writes it (`encoding/json`): names of fields in any case, `null` for what is not said, and its escapes.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use zeroize::Zeroizing;

/// A field, in whatever case its name is written. Of several the last counts that says something.
pub(crate) fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let says = |(key, value): &(&String, &Value)| key.eq_ignore_ascii_case(name) && !value.is_null();
    fields.iter().rfind(says).map(|(_, value)| value)
}

/// A text as it is written: what could end a script of a web page is escaped.
pub(crate) fn text(text: &str) -> Zeroizing<String> {
    let json = Zeroizing::new(Value::from(text).to_string());
    // Not to grow, which would leave a part of a secret behind.
    let mut escaped = Zeroizing::new(String::with_capacity(6 * json.len()));
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _written = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// Structs that are read field by field, the others passed over.
macro_rules! read_as_go {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $kind:ty = $key:literal,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub(super) struct $name { $(pub(super) $field: $kind,)* }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(document: D) -> Result<Self, D::Error> {
                struct Fields;

                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        out.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut all: A) -> Result<$name, A::Error> {
                        let mut read = $name::default();
                        while let Some(key) = all.next_key::<String>()? {
                            $(if key.eq_ignore_ascii_case($key) {
                                if let Some(value) = all.next_value::<Option<$kind>>()? {
                                    read.$field = value;
                                }
                                continue;
                            })*
                            all.next_value::<serde::de::IgnoredAny>()?;
                        }
                        Ok(read)
                    }
                }

                document.deserialize_map(Fields)
            }
        }
    )* };
}

pub(crate) use read_as_go;
