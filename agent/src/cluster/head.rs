//! Whose object something is, of which only the beginning was kept: too much of it came.
//!
//! The API server writes what kind of object it is first, then its metadata, whose first fields say which one.

use std::borrow::Cow;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Bytes of a beginning that are kept: more than the first fields of metadata have.
pub(super) const HEAD_BYTES: usize = 64 << 10;

/// An object that is there, and is too large to be read, or written otherwise than is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// `namespace`; empty where it is in none.
    pub namespace: String,
    /// `name`.
    pub name: String,
    /// `uid`.
    pub uid: String,
    /// How many bytes came, or more.
    pub bytes: usize,
    /// What is not understood; `None` when it is too large.
    pub fault: Option<String>,
}

/// What a beginning says: of an event, of an object, or of a list with its first object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// `type` of an event.
    pub(super) event: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// `resourceVersion` of the object.
    pub(super) version: String,
    /// `resourceVersion` and `continue` of a list.
    pub(super) list: (String, String),
    /// See [`Unread`].
    pub(super) fault: Option<String>,
}

impl Head {
    pub(super) fn of(beginning: &[u8]) -> Self {
        let mut head = Self::default();
        let mut json = serde_json::Deserializer::from_slice(beginning);
        // It ends somewhere in the middle, which is an error; what was there is known.
        drop(Within { head: &mut head, place: Place::Top }.deserialize(&mut json));
        head
    }

    /// The object that it is of, where it says one.
    pub(super) fn object(self, bytes: usize) -> Option<Unread> {
        let Self { namespace, name, uid, fault, .. } = self;
        (!name.is_empty()).then_some(Unread { namespace, name, uid, bytes, fault })
    }
}

/// Where in it something is.
#[derive(Clone, Copy)]
enum Place {
    /// An event, or a list.
    Top,
    ListMetadata,
    /// The first of them counts.
    Items,
    Object,
    Metadata,
}

struct Within<'a> {
    head: &'a mut Head,
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("an object of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { head, place } = self;
        while let Some(field) = map.next_key::<Cow<'de, str>>()? {
            let inner = match (place, &*field) {
                (Place::Top, "object") => Place::Object,
                (Place::Top, "items") => Place::Items,
                (Place::Top, "metadata") => Place::ListMetadata,
                (Place::Object, "metadata") => Place::Metadata,
                _ => {
                    match text(head, place, &field) {
                        Some(text) => *text = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                    continue;
                }
            };
            map.next_value_seed(Within { head, place: inner })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let first = Within { head: self.head, place: Place::Object };
        if items.next_element_seed(first)?.is_some() {
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(())
    }
}

/// Where the text of a field goes.
fn text<'a>(head: &'a mut Head, place: Place, field: &str) -> Option<&'a mut String> {
    Some(match (place, field) {
        (Place::Top, "type") => &mut head.event,
        (Place::ListMetadata, "resourceVersion") => &mut head.list.0,
        (Place::ListMetadata, "continue") => &mut head.list.1,
        (Place::Metadata, "name") => &mut head.name,
        (Place::Metadata, "namespace") => &mut head.namespace,
        (Place::Metadata, "uid") => &mut head.uid,
        (Place::Metadata, "resourceVersion") => &mut head.version,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_says_whose_it_is() {
        let metadata = r#""metadata":{"name":"a","generateName":"x","namespace":"n","uid":"u","resourceVersion":"7","labels":{"name":"no"}"#;
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1",{metadata}}},"spec":{{"name":"no","x":""#);
        let event = format!(r#"{{"type":"MODIFIED","object":{object}"#);
        let known =
            |head: &Head| (head.name.clone(), head.namespace.clone(), head.uid.clone(), head.version.clone());
        let wanted = ("a".to_owned(), "n".to_owned(), "u".to_owned(), "7".to_owned());
        let head = Head::of(event.as_bytes());
        assert_eq!((known(&head), head.event.as_str()), (wanted.clone(), "MODIFIED"));
        let list = format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9","continue":"next"}},"items":[{object}"#
        );
        let head = Head::of(list.as_bytes());
        assert_eq!((known(&head), head.list), (wanted, ("9".to_owned(), "next".to_owned())));
        // Wherever it is cut, and whatever it is.
        for end in 0..event.len() {
            let head = Head::of(&event.as_bytes()[..end]);
            assert!(head.name.is_empty() || head.name == "a", "{head:?}");
        }
        for none in ["", "x", "[]", "7", r#"{"object":7}"#, r#"{"object":{"metadata":{"name":7}}}"#, "\u{0}"]
        {
            assert_eq!(Head::of(none.as_bytes()).object(1), None, "{none}");
        }
        let deep = format!("{}1", r#"{"object":"#.repeat(100_000));
        assert_eq!(Head::of(deep.as_bytes()).object(1), None);
    }
}
