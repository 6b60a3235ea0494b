//! The lab itself: private, and empty at its end.

use std::fs;

use berth_integration::lab::Corner;
use libtest_mimic::{Failed, Trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("lab::the_world_is_private", the_world_is_private),
        Trial::test("lab::corners_differ", corners_differ),
    ]
}

fn the_world_is_private() -> Result<(), Failed> {
    // Only lo: the links of the host stay outside.
    let links = fs::read_to_string("/proc/net/dev")?;
    let names: Vec<&str> = links
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next())
        .map(str::trim)
        .filter(|name| *name == "eth0" || *name == "lo")
        .collect();
    assert_eq!(names, ["lo"]);
    assert!(!fs::exists("/sys/fs/cgroup/unified/cgroup.controllers")?);
    Ok(())
}

fn corners_differ() -> Result<(), Failed> {
    let (one, other) = (Corner::new()?, Corner::new()?);
    assert_ne!(one.dir(), other.dir());
    assert_ne!(one.cgroup(), other.cgroup());
    Ok(())
}
