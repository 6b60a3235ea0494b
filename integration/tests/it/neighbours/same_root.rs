//! Pods of another under the same root directory and cgroups: a kubelet or CRI-O with its own containerd, or a Berth that had another
//! run directory. Nothing proves that they are ours (decision 0029).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR};
use berth_integration::cgroup::Group;
use berth_integration::node::Node;

use crate::kit::{MARK, class_group, eventually, pod_dir_of, pod_group, sleeper};
use crate::lives::Identity;
use crate::suite::{Test, same, test};
use crate::swept::sleeping;

pub(crate) fn tests() -> Vec<Test> {
    vec![test("neighbours::pods_of_another_under_the_same_root", live_on)]
}

/// A pod that no agent here has made.
struct Stranger {
    dir: PathBuf,
    logs: PathBuf,
    group: Group,
    process: Child,
}

impl Stranger {
    /// One with all that a pod has on its node.
    fn new(node: &Node, uid: &str, class: &str, mark: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let dir = Path::new(ROOT_DIR).join("pods").join(uid);
        let volume = dir.join("volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&volume)?;
        fs::write(volume.join("data"), "theirs")?;
        mark(&dir.join(MARK))?;
        let logs = PathBuf::from(format!("/var/log/pods/default_theirs_{uid}"));
        fs::create_dir_all(logs.join("main"))?;
        let group = pod_group(&node.world, class, uid);
        let container = group.below("4f0a");
        container.make()?;
        let process = sleeping()?;
        container.take_in(process.id())?;
        Ok(Self { dir, logs, group, process })
    }

    fn lives(&mut self) -> Result<()> {
        let data = fs::read_to_string(self.dir.join("volumes/kubernetes.io~empty-dir/v/data"))?;
        same("what is in its volume", data.as_str(), "theirs")?;
        ensure!(self.logs.join("main").is_dir(), "its logs were removed");
        ensure!(!self.group.dirs()?.is_empty(), "its cgroup was removed");
        ensure!(self.process.try_wait()?.is_none(), "its process was killed");
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        for group in [self.group.below("4f0a"), self.group] {
            for dir in group.dirs()? {
                eventually("an empty cgroup to be removed", &true, || Ok(fs::remove_dir(&dir).is_ok()))?;
            }
        }
        fs::remove_dir_all(self.dir)?;
        Ok(fs::remove_dir_all(self.logs)?)
    }
}

fn live_on() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("ours", &sleeper("ours"))?;
    let ours = Identity::of(&node.ready("ours")?)?;
    let uid = |number: u32| format!("00000000-0000-4000-8000-0000000001{number:02}");
    let other = |mark: &Path| Ok(std::os::unix::fs::symlink("/run/second/berth", mark)?);
    let mut strangers = vec![
        Stranger::new(&node, &uid(0), "burstable", |_| Ok(()))?,
        Stranger::new(&node, &uid(1), "", other)?,
        // A file with the right text is no mark.
        Stranger::new(&node, &uid(2), "besteffort", |mark| Ok(fs::write(mark, STATE_DIR)?))?,
    ];
    // A cgroup without a directory, and one that is no pod's.
    let groups =
        [pod_group(&node.world, "burstable", &uid(3)), class_group(&node.world, "burstable").below("no-pod")];
    groups.iter().try_for_each(Group::make)?;

    for round in 0..2 {
        let left = pod_dir_of(&uid(90 + round), STATE_DIR)?;
        if round == 0 {
            node.agent.stop()?;
        } else {
            node.agent.kill()?;
        }
        node.agent.start()?;
        // What is ours is swept, and with it everything that is.
        eventually("what is left of ours to be gone", &false, || Ok(left.exists()))?;
        strangers.iter_mut().try_for_each(Stranger::lives)?;
        for group in &groups {
            ensure!(!group.dirs()?.is_empty(), "a cgroup that nothing proves to be ours was removed");
        }
        same("our pod", &Identity::of(&node.ready("ours")?)?, &ours)?;
    }
    let said = fs::read_to_string(node.agent.log())?;
    let told = said.lines().rfind(|line| line.contains("left alone")).context("nobody is told of them")?;
    for number in 0..4 {
        ensure!(told.contains(&uid(number)), "{told}");
    }

    node.remove("ours")?;
    node.gone("ours")?;
    strangers.iter_mut().try_for_each(Stranger::lives)?;
    strangers.into_iter().try_for_each(Stranger::end)?;
    for dir in groups.iter().map(Group::dirs).collect::<Result<Vec<_>>>()?.concat() {
        fs::remove_dir(dir)?;
    }
    node.end()
}
