//! What is left when a test is over.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};

use super::traces::pid_of;
use super::world::World;

/// Time that the kernel may need for the end of what was killed.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// What is left once nothing more goes away.
pub(crate) fn settled(world: &World) -> Vec<String> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        let left = left(world);
        if left.is_empty() || Instant::now() > give_up {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends and removes what a test left. All of it is under names of the test's own.
pub(crate) fn destroy(world: &World) {
    for (pid, _) in processes(world) {
        // It may have ended by itself.
        let _ended = kill(pid_of(pid), Signal::SIGKILL).is_err();
    }
    for point in mounts(world, |_| true).iter().rev() {
        let _unmounted = umount2(point.as_path(), MntFlags::MNT_DETACH).is_ok();
    }
    let give_up = Instant::now() + SETTLE_WITHIN;
    while Instant::now() < give_up && !cgroups(world).is_empty() {
        for cgroup in cgroups(world).iter().rev() {
            let _busy = fs::remove_dir(cgroup).is_err();
        }
    }
    world.groups().end();
}

fn left(world: &World) -> Vec<String> {
    let processes = processes(world).into_iter().map(|(pid, command)| format!("process {pid}: {command}"));
    // The test's own namespace file.
    let mounts = mounts(world, |point| !point.ends_with("netns"));
    let mounts = mounts.into_iter().map(|point| format!("mount {}", point.display()));
    let members = cgroups(world).into_iter().filter(|cgroup| !cgroup.ends_with(world.groups().top()));
    let cgroups = members.map(|cgroup| format!("cgroup {}", cgroup.display()));
    let sockets = world.stale_sockets().into_iter().map(|socket| format!("socket {}", socket.display()));
    processes.chain(mounts).chain(cgroups).chain(sockets).collect()
}

/// Processes that have to do with the world: in its cgroups, with its paths as arguments or as their directory.
fn processes(world: &World) -> Vec<(u32, String)> {
    let dir = world.dir().display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let path = entry.path();
        let read =
            |name: &str| fs::read(path.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let command = read("cmdline").unwrap_or_default().replace('\0', " ");
        let cwd = fs::read_link(path.join("cwd")).unwrap_or_default();
        let in_cgroup = read("cgroup").is_ok_and(|table| is_in(&table, world.groups().top()));
        if in_cgroup || command.contains(&dir) || cwd.starts_with(world.dir()) {
            found.push((pid, command));
        }
    }
    found
}

/// Whether a table of /proc/pid/cgroup tells of a group of this name or below one. Names begin alike: `x-1` is not `x-12`.
fn is_in(table: &str, name: &str) -> bool {
    table.lines().any(|line| line.split(['/', ':']).any(|part| part == name))
}

fn mounts(world: &World, is_of_interest: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(world.dir()) && is_of_interest(point)).collect()
}

/// Cgroups of the world in every hierarchy, parents first.
fn cgroups(world: &World) -> Vec<PathBuf> {
    let name = world.groups().top();
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
    let hierarchies = hierarchies.chain([root.to_owned()]).filter(|dir| dir.join("cgroup.procs").exists());
    let tops = hierarchies.map(|hierarchy| hierarchy.join(name));
    tops.filter(|top| top.is_dir()).flat_map(|top| tree(&top)).collect()
}

fn tree(dir: &Path) -> Vec<PathBuf> {
    let children = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = children.filter(|path| path.is_dir()).flat_map(|path| tree(&path));
    std::iter::once(dir.to_owned()).chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_not_another_whose_name_begins_alike() {
        for (table, is_its) in [
            ("5:pids:/x-1/c1\n0::/\n", true),
            ("0::/x-1\n", true),
            ("0::/kubepods/x-1/c1/berth-exec-3\n", true),
            ("5:pids:/x-12/c1\n0::/x-10\n", false),
            ("0::/\n", false),
        ] {
            assert_eq!(is_in(table, "x-1"), is_its, "{table:?}");
        }
    }
}
