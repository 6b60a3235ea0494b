//! The agent's own directories do not answer: the manifests, or the disk of its root directory. What runs goes on, the agent
//! says what it waits for, and it can be stopped and started.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use berth_integration::agent::{ROOT_DIR, Settings, berth};
use berth_integration::node::Node;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::dead_fs::{DeadFs, Disk, Server};
use crate::kit::{events, eventually, sleeper};
use crate::stalls::{in_time, stop};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("unanswered::manifests_whose_server_never_answers", dead_manifests),
        test("unanswered::a_frozen_disk_under_the_root_directory", frozen_root),
    ]
}

fn dead_manifests() -> Result<()> {
    let dir = PathBuf::from("/run/dead");
    let settings = Settings {
        kubelet: json!({ "staticPodPath": dir, "fileCheckFrequency": "1s" }),
        ..Settings::default()
    };
    let mut node = Node::start_with(&settings)?;
    let dead = DeadFs::mount(&dir, Server::Reads)?;
    eventually("the manifests to be named", &true, || Ok(berth(&["pods"])?.contains("still waiting since")))?;
    stop(&mut node)?;
    node.agent.start()?;
    stop(&mut node)?;
    dead.release()?;
    node.agent.start()?;
    eventually("the manifests to be read", &false, || Ok(berth(&["pods"])?.contains("still waiting since")))?;
    node.end()
}

fn frozen_root() -> Result<()> {
    let root = Path::new(ROOT_DIR);
    fs::create_dir_all(root)?;
    let disk = Disk::mount(root, Path::new("/run/root.ext4"))?;
    let mut node = Node::start()?;
    node.apply("runs", &sleeper("runs"))?;
    let runs = node.ready("runs")?;
    let frozen = disk.freeze()?;
    node.apply("new", &sleeper("new"))?;
    eventually("the disk to be named", &true, || {
        let new = node.pod("new")?;
        Ok(new.is_some_and(|new| events(&new).is_ok_and(|told| told.contains(ROOT_DIR))))
    })?;
    stop(&mut node)?;

    // The next one says what it waits for, and can be stopped as well.
    let log = node.world.root().join("waiting.log");
    let output = File::create(&log)?;
    let mut next = node.agent.command()?.stdout(output.try_clone()?).stderr(output).spawn()?;
    let told = eventually("the root directory to be waited for", &true, || {
        Ok(fs::read_to_string(&log)?.contains("the root directory is waited for"))
    });
    kill(Pid::from_raw(i32::try_from(next.id())?), Signal::SIGTERM)?;
    let ended = in_time(|| eventually("it to end", &true, || Ok(next.try_wait()?.is_some())));
    drop(frozen);
    told?;
    ended?;

    node.agent.start()?;
    node.ready("new")?;
    same("what runs", node.ready("runs")?.container_id("main")?, runs.container_id("main")?)?;
    node.end()?;
    disk.unmount()
}
