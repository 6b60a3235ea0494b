//! The lab itself: private, and strict about what is left in it.

use std::fs;
use std::process::{self, Command};

use anyhow::{Context, Result, ensure};
use berth_integration::lab::World;
use berth_integration::node::system;
use berth_integration::systemd;
use berth_integration::vm::Feature;
use nix::mount::{MsFlags, mount};

use crate::suite::{Expect, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("lab::the_world_is_private", the_world_is_private),
        leak("lab::a_process_left_behind_fails", leave_a_process, "sleep 60"),
        leak("lab::a_mount_left_behind_fails", leave_a_mount, "mount /tmp/berth-lab-"),
        leak("lab::a_link_left_behind_fails", leave_a_link, "link left0"),
        leak("lab::a_cgroup_left_behind_fails", leave_a_cgroup, "cgroup /sys/fs/cgroup/"),
        leak("lab::a_unit_left_behind_fails", leave_a_unit, "-left.slice active").needs(Feature::Systemd),
        leak("lab::a_netns_left_behind_fails", leave_a_netns, "network namespace /run/netns/left"),
        leak("lab::a_panic_fails", || panic!("on purpose"), "on purpose"),
    ]
}

fn leak(name: &str, body: fn() -> Result<()>, reason: &'static str) -> Test {
    Test { expect: Expect::Fail(reason), ..test(name, body) }
}

fn the_world_is_private() -> Result<()> {
    // Only lo: the links of the host stay outside.
    let links = fs::read_to_string("/proc/net/dev")?;
    let eth: Vec<&str> = links.lines().filter(|line| line.trim_start().starts_with("eth")).collect();
    same("links of the host", eth, Vec::new())?;
    ensure!(!fs::exists("/sys/fs/cgroup/unified/cgroup.controllers")?, "cgroup/unified is mounted");
    let mine = World::here()?.processes()?;
    ensure!(mine.contains(&process::id()) && mine.len() == 2, "processes are {mine:?}");
    if systemd::is_here() {
        let cgroup = fs::read_to_string("/proc/self/cgroup")?;
        ensure!(cgroup.contains("/bertht"), "the cgroup is {cgroup}");
        return Ok(());
    }
    let parent = fs::read_to_string("/proc/1/cmdline")?;
    ensure!(parent.contains("lab::the_world_is_private"), "process 1 is {parent}");
    Ok(())
}

fn leave_a_process() -> Result<()> {
    Command::new("sleep").arg("60").spawn().context("start sleep")?;
    Ok(())
}

fn leave_a_mount() -> Result<()> {
    let dir = World::here()?.root().join("left");
    fs::create_dir(&dir)?;
    Ok(mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
}

fn leave_a_link() -> Result<()> {
    let added = Command::new("ip").args(["link", "add", "left0", "type", "bridge"]).status()?;
    ensure!(added.success(), "ip link add ended with {added}");
    Ok(())
}

fn leave_a_cgroup() -> Result<()> {
    World::here()?.make_cgroup()
}

/// A slice that stays when the scope in it has ended.
fn leave_a_unit() -> Result<()> {
    let slice = format!("{}-left.slice", World::here()?.cgroup_root().trim_start_matches('/'));
    system("systemd-run", &["--quiet", "--scope", "--slice", &slice, "true"]).map(drop)
}

fn leave_a_netns() -> Result<()> {
    Ok(fs::write("/run/netns/left", "")?)
}
