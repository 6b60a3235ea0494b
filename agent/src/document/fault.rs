//! What is wrong with a document, and where.

use std::{fmt, sync::Arc};

/// Where something is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// File, or the name of a flag.
    pub file: Arc<str>,
    /// Line, counted from 1; 0 where there are no lines.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { out.write_str(&self.file) } else { write!(out, "{}:{}", self.file, self.line) }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub place: Option<Place>,
    /// The field, such as `spec.containers[0].image`; empty for the document as a whole.
    pub field: String,
    /// What, and what to write instead.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(out, "{place}: ")?;
        }
        if !self.field.is_empty() {
            write!(out, "{}: ", self.field)?;
        }
        out.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { place: None, field: String::new(), message: message.to_string() }
    }

    fn invalid_type(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::custom(format_args!("expected {expected}, found {found}"))
    }

    fn invalid_value(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::custom(format_args!("expected {expected}, found {found}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format_args!("field `{field}` is missing"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let hint = suggestion(variant, expected)
            .map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
        Self::custom(format_args!("`{variant}` is not one of {}{hint}", list(expected)))
    }
}

/// Everything that is wrong, in the order of the document. Never empty where it is an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            write!(out, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl Faults {
    /// `Ok` with the value when nothing is wrong.
    ///
    /// # Errors
    /// The faults, when there are any.
    pub fn or<T>(mut self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            return Ok(value);
        }
        self.0.sort();
        self.0.dedup();
        Err(self)
    }
}

/// The name that was probably meant: equal but for case, or few letters away.
#[must_use]
pub fn suggestion<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = written.to_lowercase();
    known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), *name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 5)
        .min()
        .map(|(_, name)| name)
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
