//! What is found while a manifest is converted.

use std::collections::BTreeSet;

use crate::document::{Faults, Node, suggestion};

/// Faults, and fields that are understood and not acted on.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    node: &'a Node,
    faults: Faults,
    unsupported: BTreeSet<String>,
}

impl<'a> Notes<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, faults: Faults::default(), unsupported: BTreeSet::new() }
    }

    /// The pod cannot be run as it is written.
    pub(super) fn fault(&mut self, field: &str, message: impl Into<String>) {
        self.faults.0.push(self.node.fault(field, message));
    }

    /// The pod runs, but nothing is done about this field.
    pub(super) fn unsupported(&mut self, field: impl Into<String>) {
        self.unsupported.insert(field.into());
    }

    /// As [`Self::unsupported`], when the field is there.
    pub(super) fn unsupported_if(&mut self, there: bool, field: impl Into<String>) {
        if there {
            self.unsupported(field);
        }
    }

    /// A name of a closed set; the first when it is not given, and when it is another.
    pub(super) fn one_of<T: Copy>(&mut self, field: &str, written: Option<&str>, known: &[(&str, T)]) -> T {
        let default = known[0].1;
        let Some(written) = written.filter(|written| !written.is_empty()) else { return default };
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == written) {
            return *value;
        }
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        let hint =
            suggestion(written, &names).map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        self.fault(field, format!("`{written}` is not one of {names}{hint}"));
        default
    }

    /// The same of a field that has to be given.
    pub(super) fn required_one_of<T: Copy>(&mut self, field: &str, written: &str, known: &[(&str, T)]) -> T {
        if written.is_empty() {
            self.fault(field, "is missing");
        }
        self.one_of(field, Some(written), known)
    }

    /// A number within bounds; `None` when it is not given or is out of them.
    pub(super) fn number<T: TryFrom<i64>>(
        &mut self,
        field: &str,
        written: Option<i64>,
        least: i64,
        most: i64,
    ) -> Option<T> {
        let written = written?;
        if !(least..=most).contains(&written) {
            self.fault(field, format!("{written} is not within {least} and {most}"));
            return None;
        }
        T::try_from(written).ok()
    }

    /// The value, or everything that is wrong.
    pub(super) fn finish<T>(self, value: T) -> Result<(T, Vec<String>), Faults> {
        let unsupported = self.unsupported.into_iter().collect();
        self.faults.or((value, unsupported))
    }
}
