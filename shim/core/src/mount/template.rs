//! Templates of `format/` mounts: text with actions that stand for earlier mounts.
//!
//! containerd gives them to Go's `text/template` with four functions (`core/mount/manager/format.go`); what its
//! documentation promises (`docs/mounts.md`), and what snapshotters write, is one function and its numbers:
//! `{{ source 0 }}`, `{{ target 0 }}`, `{{ mount 0 }}` and `{{ overlay 0 2 }}`.

use super::PlanError;

/// Bytes that all templates of one root file system may grow to: many times the paths of 500 layers.
pub(super) const FILLED_BYTES_MAX: usize = 1 << 20;
/// Characters of a bad template that are shown.
const SHOWN_MAX: usize = 100;

/// A mount that templates may name.
#[derive(Debug, Clone)]
pub(super) struct Active {
    pub(super) source: String,
    pub(super) target: String,
    /// Where it is mounted.
    pub(super) point: String,
}

/// Fills templates in, all within one allowance of bytes.
#[derive(Debug)]
pub(super) struct Filler<'a> {
    /// What may be named.
    pub(super) active: &'a [Active],
    /// What is left of the allowance.
    pub(super) bytes_left: &'a mut usize,
}

impl<'a> Filler<'a> {
    pub(super) fn fill(&mut self, text: &str) -> Result<String, PlanError> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (action, after) =
                after.split_once("}}").ok_or_else(|| refuse(text, "an action has no end"))?;
            self.push(&mut filled, before)?;
            self.act(&mut filled, action)?;
            rest = after;
        }
        self.push(&mut filled, rest)?;
        Ok(filled)
    }

    fn act(&mut self, filled: &mut String, action: &str) -> Result<(), PlanError> {
        let words: Vec<&str> = action.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["source", index] => self.push(filled, &self.at(action, index)?.source),
            ["target", index] => self.push(filled, &self.at(action, index)?.target),
            ["mount", index] => self.push(filled, &self.at(action, index)?.point),
            ["overlay", start, end] => self.range(filled, action, (start, end)),
            _ => {
                Err(refuse(action, "an action is source, target or mount with a number, or overlay with two"))
            }
        }
    }

    /// The places of a range of mounts, both ends included, in the order in which it is written.
    fn range(&mut self, filled: &mut String, action: &str, ends: (&str, &str)) -> Result<(), PlanError> {
        let (start, end) = (self.index(action, ends.0)?, self.index(action, ends.1)?);
        let length = start.abs_diff(end) + 1;
        for number in 0..length {
            let index = if start <= end { start + number } else { start - number };
            if number > 0 {
                self.push(filled, ":")?;
            }
            let points = self.active;
            self.push(filled, points.get(index).map_or("", |active| active.point.as_str()))?;
        }
        Ok(())
    }

    fn at(&self, action: &str, index: &str) -> Result<&'a Active, PlanError> {
        let index = self.index(action, index)?;
        self.active.get(index).ok_or_else(|| self.absent(action))
    }

    /// The number of a mount that is there.
    fn index(&self, action: &str, index: &str) -> Result<usize, PlanError> {
        let index = index.parse().ok().filter(|index: &usize| *index < self.active.len());
        index.ok_or_else(|| self.absent(action))
    }

    fn absent(&self, action: &str) -> PlanError {
        PlanError::Index { text: shown(action), active: self.active.len() }
    }

    fn push(&mut self, filled: &mut String, text: &str) -> Result<(), PlanError> {
        let left = self.bytes_left.checked_sub(text.len());
        *self.bytes_left = left.ok_or(PlanError::TooLong(FILLED_BYTES_MAX))?;
        filled.push_str(text);
        Ok(())
    }
}

fn refuse(text: &str, why: &'static str) -> PlanError {
    PlanError::Template { text: shown(text), why }
}

fn shown(text: &str) -> String {
    text.trim().chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str, mounts: usize) -> Result<String, PlanError> {
        let active: Vec<Active> = (0..mounts)
            .map(|number| Active {
                source: format!("/src/{number}"),
                target: format!("t{number}"),
                point: format!("/mp/{number}"),
            })
            .collect();
        Filler { active: &active, bytes_left: &mut { FILLED_BYTES_MAX } }.fill(text)
    }

    #[test]
    fn actions_stand_for_earlier_mounts() {
        for (text, filled) in [
            ("", ""),
            ("/plain }} text", "/plain }} text"),
            ("{{ source 1 }}", "/src/1"),
            ("{{target 0}}", "t0"),
            ("{{ mount 0 }}/upper:0755", "/mp/0/upper:0755"),
            ("a{{ mount 0 }}b{{\tmount  4 }}c", "a/mp/0b/mp/4c"),
            ("lowerdir={{ overlay 0 0 }}", "lowerdir=/mp/0"),
            ("lowerdir={{ overlay 1 3 }}", "lowerdir=/mp/1:/mp/2:/mp/3"),
            ("lowerdir={{ overlay 3 1 }}", "lowerdir=/mp/3:/mp/2:/mp/1"),
        ] {
            assert_eq!(fill(text, 5).as_deref(), Ok(filled), "{text}");
        }
    }

    #[test]
    fn mounts_that_are_not_there_yet_cannot_be_named() {
        for text in
            ["{{ mount 5 }}", "{{ mount -1 }}", "{{ source 99999999999999999999 }}", "{{ overlay 0 5 }}"]
        {
            assert!(matches!(fill(text, 5), Err(PlanError::Index { active: 5, .. })), "{text}");
        }
        assert!(matches!(fill("{{ overlay 0 0 }}", 0), Err(PlanError::Index { active: 0, .. })));
    }

    #[test]
    fn other_actions_are_refused() {
        let long = format!("{{{{ {} }}}}", "ä".repeat(1000));
        for text in [
            "{{",
            "{{ mount 0",
            "{{}}",
            "{{ mount }}",
            "{{ mount 0 1 }}",
            "{{ overlay 0 }}",
            "{{ env 0 }}",
            "{{{ mount 0 }}}",
            "{{ if true }}x{{ end }}",
            "{{ printf \"%1000000d\" 1 }}",
            "{{ 0 | mount }}",
            &long,
        ] {
            assert!(matches!(fill(text, 2), Err(PlanError::Template { .. })), "{text}");
        }
    }

    #[test]
    fn a_small_template_cannot_grow_without_end() {
        let text = "{{ overlay 0 499 }}".repeat(1000);
        assert_eq!(fill(&text, 500), Err(PlanError::TooLong(FILLED_BYTES_MAX)));
    }
}
