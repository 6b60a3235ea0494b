//! Root file systems of every form that containerd hands down.

mod forms;
mod images;
mod managed;
mod mapped;
mod refused;

pub(crate) use forms::CASES as FORMS;
pub(crate) use images::{base, devices, directory, mount, run, text};
pub(crate) use managed::CASES as MANAGED;
pub(crate) use mapped::CASES as MAPPED;
pub(crate) use refused::CASES as REFUSED;
