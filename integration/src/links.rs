//! The links of this network namespace.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use nix::net::if_::if_nameindex;

/// Their names.
///
/// # Errors
/// The kernel does not tell.
pub fn names() -> Result<BTreeSet<String>> {
    let links = if_nameindex().context("ask for the links")?;
    Ok(links.iter().map(|link| link.name().to_string_lossy().into_owned()).collect())
}
