//! A security context: user, role, type, and a level where the policy has some.

use std::fmt;

/// A label of a process or a file, in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// MLS or MCS level.
    pub level: Option<String>,
}

impl Context {
    /// Takes a label apart; `None` for a text that is none.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { user, role, kind, level: parts.next().filter(|level| !level.is_empty()) })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, role, kind, level } = self;
        write!(out, "{user}:{role}:{kind}")?;
        level.as_ref().map_or(Ok(()), |level| write!(out, ":{level}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_what_it_was_taken_apart_from() {
        for (text, level) in [
            ("system_u:system_r:container_t:s0:c1,c2", Some("s0:c1,c2")),
            ("system_u:system_r:container_t:s0-s0:c0.c1023", Some("s0-s0:c0.c1023")),
            ("user_u:object_r:container_file_t", None),
        ] {
            let context = Context::of(text).unwrap();
            assert_eq!(context.level.as_deref(), level, "{text}");
            assert_eq!(context.to_string(), text);
        }
        assert_eq!(Context::of("a:b:c:").unwrap().to_string(), "a:b:c");
        for text in ["", "container_t", "system_u:container_t"] {
            assert_eq!(Context::of(text), None, "{text}");
        }
    }
}
