//! Typed values from a tree: fields that a type does not have are faults, and every fault has its place.

use std::cell::RefCell;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Unexpected, Visitor,
};

use super::{Entry, Fault, Faults, Node, Number, Value, suggestion};

/// Reads a value of a type. Unknown fields are all found; of other faults the first ends the reading.
///
/// # Errors
/// What is wrong with the document.
pub fn read<T: DeserializeOwned>(node: &Node) -> Result<T, Faults> {
    let found = RefCell::new(Vec::new());
    let reader = Reader { node, path: Path::Root, found: &found, numbers: Numbers::AsNumbers };
    let result = T::deserialize(reader);
    let mut faults = found.into_inner();
    match result {
        Ok(value) => Faults(faults).or(value),
        Err(fault) => {
            faults.push(fault);
            faults.sort();
            Err(Faults(faults))
        }
    }
}

/// As [`read`], and gives back what it found of fields that the type does not have, instead of refusing them.
///
/// # Errors
/// What is wrong with the document beside those.
pub fn read_noting<T: DeserializeOwned>(node: &Node) -> Result<(T, Faults), Faults> {
    let found = RefCell::new(Vec::new());
    let reader = Reader { node, path: Path::Root, found: &found, numbers: Numbers::AsNumbers };
    let value = T::deserialize(reader)?;
    Ok((value, Faults(found.into_inner())))
}

#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => out.write_str(key),
            Self::Key(parent, key) => write!(out, "{parent}.{key}"),
            Self::Index(parent, index) => write!(out, "{parent}[{index}]"),
        }
    }
}

/// Whether a string field takes a number too: only quantities do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    AsNumbers,
    AsText,
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    path: Path<'a>,
    found: &'a RefCell<Vec<Fault>>,
    numbers: Numbers,
}

impl<'a> Reader<'a> {
    fn located(self, mut fault: Fault) -> Fault {
        if fault.place.is_none() {
            fault.place = Some(self.node.place.clone());
            fault.field = self.path.to_string();
        }
        fault
    }

    fn known(self, entry: &Entry, fields: &'static [&'static str]) -> bool {
        if fields.contains(&entry.key.as_str()) {
            return true;
        }
        let hint = suggestion(&entry.key, fields)
            .map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
        self.found.borrow_mut().push(Fault {
            place: Some(entry.place.clone()),
            field: Path::Key(&self.path, &entry.key).to_string(),
            message: format!("unknown field{hint}"),
        });
        false
    }

    fn unexpected(self) -> Unexpected<'a> {
        match &self.node.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(Number::Integer { value, .. }) => {
                i64::try_from(*value).map_or(Unexpected::Other("a large number"), Unexpected::Signed)
            }
            Value::Number(Number::Float { value, .. }) => Unexpected::Float(*value),
            Value::Text(text) => Unexpected::Str(text),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_str(text),
            Value::Number(Number::Integer { text, .. } | Number::Float { text, .. })
                if self.numbers == Numbers::AsText =>
            {
                visitor.visit_str(text)
            }
            Value::Number(_) | Value::Bool(_) => {
                let found = self.unexpected();
                Err(Fault::custom(format_args!("expected a string, found {found}: put it in quotes")))
            }
            Value::Null | Value::List(_) | Value::Map(_) => {
                Err(Fault::invalid_type(self.unexpected(), &"a string"))
            }
        }
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Number(Number::Integer { value, .. }) => visit_integer(*value, visitor),
            Value::Null
            | Value::Bool(_)
            | Value::Number(Number::Float { .. })
            | Value::Text(_)
            | Value::List(_)
            | Value::Map(_) => Err(Fault::invalid_type(self.unexpected(), &"a whole number")),
        }
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(Number::Integer { value, .. }) => visit_integer(*value, visitor),
            Value::Number(Number::Float { value, .. }) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(Items { reader: self, items, index: 0 }),
            Value::Map(entries) => visitor.visit_map(Fields::new(self, entries.iter().collect())),
        }
    }
}

fn visit_integer<'de, V: Visitor<'de>>(value: i128, visitor: V) -> Result<V::Value, Fault> {
    if let Ok(value) = i64::try_from(value) {
        visitor.visit_i64(value)
    } else if let Ok(value) = u64::try_from(value) {
        visitor.visit_u64(value)
    } else {
        Err(Fault::custom(format_args!("{value} is out of range")))
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            self.integer(visitor).map_err(|fault| self.located(fault))
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            self.text(visitor).map_err(|fault| self.located(fault))
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.any(visitor).map_err(|fault| self.located(fault))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::Bool(value) = self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"`true` or `false`")));
        };
        visitor.visit_bool(value)
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    texts! { deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::Number(_) = self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"a number")));
        };
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.node.value == Value::Null { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_any(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let numbers = if name == "Quantity" { Numbers::AsText } else { self.numbers };
        visitor.visit_newtype_struct(Self { numbers, ..self }).map_err(|fault| self.located(fault))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::List(items) = &self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"a list")));
        };
        visitor.visit_seq(Items { reader: self, items, index: 0 }).map_err(|fault| self.located(fault))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"a map")));
        };
        visitor.visit_map(Fields::new(self, entries.iter().collect())).map_err(|fault| self.located(fault))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"a map")));
        };
        let known = entries.iter().filter(|entry| self.known(entry, fields)).collect();
        visitor.visit_map(Fields::new(self, known)).map_err(|fault| self.located(fault))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::Text(text) = &self.node.value else {
            return Err(self.located(Fault::invalid_type(self.unexpected(), &"a name")));
        };
        let variant = serde::de::value::StrDeserializer::<Fault>::new(text);
        visitor.visit_enum(variant).map_err(|fault| self.located(fault))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    items: &'a [Node],
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.items.get(self.index) else { return Ok(None) };
        let path = Path::Index(&self.reader.path, self.index);
        let value = read_child(self.reader, item, path, seed)?;
        self.index += 1;
        Ok(Some(value))
    }
}

struct Fields<'a> {
    reader: Reader<'a>,
    entries: std::vec::IntoIter<&'a Entry>,
    current: Option<&'a Entry>,
}

impl<'a> Fields<'a> {
    fn new(reader: Reader<'a>, entries: Vec<&'a Entry>) -> Self {
        Self { reader, entries: entries.into_iter(), current: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        self.current = self.entries.next();
        let Some(entry) = self.current else { return Ok(None) };
        seed.deserialize(serde::de::value::StrDeserializer::new(&entry.key)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let entry = self.current.ok_or_else(|| Fault::custom("a value was asked for before its key"))?;
        read_child(self.reader, &entry.value, Path::Key(&self.reader.path, &entry.key), seed)
    }
}

fn read_child<'de, T: DeserializeSeed<'de>>(
    parent: Reader<'_>,
    node: &Node,
    path: Path<'_>,
    seed: T,
) -> Result<T::Value, Fault> {
    let reader = Reader { node, path, found: parent.found, numbers: Numbers::AsNumbers };
    seed.deserialize(reader).map_err(|fault| reader.located(fault))
}
