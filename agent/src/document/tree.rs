//! The tree of a document, with the place of every node.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{Fault, Place, scalar};

/// Largest document that is read: the kubelet's bound for manifests (`pkg/kubelet/config/file.go` reads 10 MiB).
pub const BYTES_MAX: usize = 10 << 20;

/// Nodes of one file with its aliases expanded: a hundred times the largest pod, and no room for a bomb of aliases.
const NODES_MAX: usize = 200_000;

/// Depth of nesting: a pod needs 12.
const DEPTH_MAX: usize = 64;

/// A value and where it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where.
    pub place: Place,
    /// What.
    pub value: Value,
}

/// The kinds of value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map with keys in the order of writing, none of them twice.
    Map(Vec<Entry>),
}

/// A number, with the letters it was written in.
#[derive(Debug, Clone, PartialEq)]
pub enum Number {
    /// Within the range of `i64` and `u64` together.
    Integer {
        /// Its value.
        value: i128,
        /// As written.
        text: String,
    },
    /// Anything else.
    Float {
        /// The nearest value.
        value: f64,
        /// As written.
        text: String,
    },
}

/// One key of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where the key is written.
    pub place: Place,
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// The value of a key, when this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// The text, when this is a string.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The node at a path such as `spec.containers[0].image`, or the nearest one around it.
    #[must_use]
    pub fn nearest(&self, path: &str) -> &Self {
        let mut node = self;
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.value {
                Value::List(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
                Value::Map(_) => node.get(step),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => None,
            };
            let Some(next) = next else { break };
            node = next;
        }
        node
    }

    /// A fault at a path of this node.
    #[must_use]
    pub fn fault(&self, path: &str, message: impl Into<String>) -> Fault {
        Fault {
            place: Some(self.nearest(path).place.clone()),
            field: path.to_owned(),
            message: message.into(),
        }
    }
}

/// Parses all documents of a text. Empty ones are left out.
///
/// # Errors
/// The first thing that is wrong: syntax, a key given twice, a key that is not a string, or a text beyond the bounds.
pub fn parse(file: &str, text: &str) -> Result<Vec<Node>, Fault> {
    let file: Arc<str> = file.into();
    if text.len() > BYTES_MAX {
        let message = format!("larger than {BYTES_MAX} bytes");
        return Err(Fault { place: Some(Place { file, line: 0 }), field: String::new(), message });
    }
    let mut options = Options::default();
    options.flow_nesting_limit = DEPTH_MAX;
    options.block_nesting_limit = DEPTH_MAX;
    let parser = Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options);
    Builder { parser, file, anchors: BTreeMap::new(), nodes: 0 }.documents()
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    file: Arc<str>,
    /// Anchored nodes with the number of nodes in each.
    anchors: BTreeMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn documents(mut self) -> Result<Vec<Node>, Fault> {
        let mut documents = Vec::new();
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
                content => documents.push(self.node(content, &span)?),
            }
        }
        documents.retain(|document| document.value != Value::Null);
        Ok(documents)
    }

    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, Fault> {
        let before = self.nodes;
        self.count(1, span)?;
        let place = self.place(span);
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar_value(&text, style, tag.is_some())),
            Event::SequenceStart(_, anchor, _) => (anchor, self.list()?),
            Event::MappingStart(_, anchor, _) => (anchor, self.map()?),
            Event::Alias(anchor) => {
                let (node, size) = self
                    .anchors
                    .get(&anchor)
                    .cloned()
                    .ok_or_else(|| self.fault(span, "an alias of a value that contains it"))?;
                self.count(size, span)?;
                return Ok(node);
            }
            _ => return Err(self.fault(span, "not a value")),
        };
        let node = Node { place, value };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Value, Fault> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.node(event, &span)?);
        }
        Ok(Value::List(items))
    }

    fn map(&mut self) -> Result<Value, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        // Looked up, not searched for: a map may have as many keys as a file has values.
        let mut lines: BTreeMap<Cow<'a, str>, usize> = BTreeMap::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key = self.key(event, &span)?;
            let place = self.place(&span);
            let Some((event, value_span)) = self.next()? else { break };
            let value = self.node(event, &value_span)?;
            if key == Cow::Borrowed("<<") {
                merged.extend(self.merge_source(value, &span)?);
            } else if let Some(first) = lines.insert(key.clone(), place.line) {
                let message = format!("`{key}` is given twice, first in line {first}");
                return Err(self.fault(&span, &message));
            } else {
                entries.push(Entry { place, key: key.into_owned(), value });
            }
        }
        for entry in merged {
            if lines.insert(Cow::Owned(entry.key.clone()), entry.place.line).is_none() {
                entries.push(entry);
            }
        }
        Ok(Value::Map(entries))
    }

    fn key(&self, event: Event<'a>, span: &Span) -> Result<Cow<'a, str>, Fault> {
        match event {
            Event::Scalar(text, ..) => Ok(text),
            _ => Err(self.fault(span, "a key must be a string")),
        }
    }

    fn merge_source(&self, value: Node, span: &Span) -> Result<Vec<Entry>, Fault> {
        match value.value {
            Value::Map(entries) => Ok(entries),
            Value::List(items) => {
                let mut all = Vec::new();
                for item in items {
                    all.extend(self.merge_source(item, span)?);
                }
                Ok(all)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
                Err(self.fault(span, "`<<` takes a map or a list of maps"))
            }
        }
    }

    fn count(&mut self, nodes: usize, span: &Span) -> Result<(), Fault> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            return Err(self.fault(span, &format!("more than {NODES_MAX} values, aliases included")));
        }
        Ok(())
    }

    /// The next one that says something. Comments come since another library asks the parser for them.
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Fault> {
        loop {
            match self.parser.next_event().transpose().map_err(|error| self.syntax(&error))? {
                Some((Event::Comment(..), _)) => {}
                event => return Ok(event),
            }
        }
    }

    fn syntax(&self, error: &ScanError) -> Fault {
        let place = Place { file: Arc::clone(&self.file), line: error.marker().line() };
        Fault { place: Some(place), field: String::new(), message: error.info() }
    }

    fn place(&self, span: &Span) -> Place {
        Place { file: Arc::clone(&self.file), line: span.start.line() }
    }

    fn fault(&self, span: &Span, message: &str) -> Fault {
        Fault { place: Some(self.place(span)), field: String::new(), message: message.to_owned() }
    }
}

fn scalar_value(text: &str, style: ScalarStyle, tagged: bool) -> Value {
    if style == ScalarStyle::Plain && !tagged { scalar::resolve(text) } else { Value::Text(text.to_owned()) }
}
