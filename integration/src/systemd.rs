//! systemd of this machine, asked with its own tools. They take its own socket, so a stopped bus is none of their concern.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::node::system;

/// There when the machine was booted with systemd; see sd_booted(3).
const BOOTED: &str = "/run/systemd/system";

/// Whether systemd is process 1 of this machine.
#[must_use]
pub fn is_here() -> bool {
    Path::new(BOOTED).is_dir()
}

/// A unit that systemd has in mind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its name.
    pub name: String,
    /// The slice it is in; empty for a unit without processes.
    pub slice: String,
    /// `active`, `failed`, …
    pub state: String,
}

/// Scopes and slices below a slice, without that itself.
///
/// # Errors
/// systemd does not answer.
pub fn units_below(slice: &str) -> Result<Vec<Unit>> {
    let stem = slice.trim_end_matches(".slice");
    let own = format!("{stem}*");
    let properties = "--property=Id,Slice,ActiveState";
    let shown = system("systemctl", &["show", properties, "*.scope", "*.slice", &own])?;
    let mut found: Vec<Unit> = shown.split("\n\n").map(unit).collect();
    let is_below = |name: &str| name == slice || name.starts_with(&format!("{stem}-"));
    found.retain(|unit| unit.name != slice && (is_below(&unit.name) || is_below(&unit.slice)));
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup();
    Ok(found)
}

fn unit(block: &str) -> Unit {
    let value = |name: &str| {
        let lines = block.lines().filter_map(|line| line.split_once('='));
        lines.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect::<String>()
    };
    Unit { name: value("Id"), slice: value("Slice"), state: value("ActiveState") }
}

/// Properties of a unit, as systemd shows them.
///
/// # Errors
/// systemd does not answer, or has no such property.
pub fn properties<const N: usize>(unit: &str, names: [&str; N]) -> Result<[String; N]> {
    let shown = system("systemctl", &["show", "--property", &names.join(","), unit])?;
    let mut found = [const { String::new() }; N];
    for (value, name) in found.iter_mut().zip(names) {
        let start = format!("{name}=");
        let line = shown.lines().find_map(|line| line.strip_prefix(&start));
        line.with_context(|| format!("{unit} has no property {name}"))?.clone_into(value);
    }
    Ok(found)
}

/// Stops units and forgets how they ended. Those that are not there are no concern.
///
/// # Errors
/// systemd does not answer, or one does not stop.
pub fn stop(units: &[&str]) -> Result<()> {
    for unit in units {
        if state(unit)? == "active" {
            system("systemctl", &["stop", unit])?;
        }
        if state(unit)? == "failed" {
            system("systemctl", &["reset-failed", unit])?;
        }
    }
    Ok(())
}

fn state(unit: &str) -> Result<String> {
    let [state] = properties(unit, ["ActiveState"])?;
    Ok(state)
}
