//! Rotated logs, which copies of the shim compress.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::libc;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Pod, Spec, Task, World, is_gone, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("old_logs_are_compressed_and_no_line_is_lost", EVERY, old_logs_are_compressed_and_no_line_is_lost),
    ("a_log_that_rotates_faster_than_it_is_compressed_stays_bounded", FAKE, a_log_that_rotates_fast),
    ("files_of_others_stay", FAKE, files_of_others_stay),
    ("a_copy_that_is_killed_is_made_again", FAKE, a_copy_that_is_killed_is_made_again),
    ("a_copy_goes_with_its_shim", FAKE, a_copy_goes_with_its_shim),
    ("a_copy_that_has_no_room_leaves_the_log", FAKE, a_copy_that_has_no_room_leaves_the_log),
    ("the_last_rotation_of_a_pod_is_compressed", FAKE, the_last_rotation_of_a_pod_is_compressed),
];

/// A log from before, which the next rotation is to compress.
const OLD: &str = "0.log.20200101-000000";
/// Compressing so much takes longer than a test needs to notice it.
const HUGE: u64 = 2 << 30;

/// A container that rotates its log when it is told to.
pub(crate) struct Talker<'s> {
    pub(crate) task: Task<'s>,
    gate: File,
}

impl<'s> Talker<'s> {
    pub(crate) fn start(world: &World, pod: &'s Pod<'_>, parameters: &str) -> Talker<'s> {
        let gate = world.shared().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let script =
            format!("exec 3<{}; while read line <&3; do seq 1 100; done; exit 4", world.shared_path("gate"));
        let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "", parameters).unwrap();
        task.begin().unwrap();
        // A thread of the shim makes it, and what others put beside it needs its directory.
        until("its log", || (!task.log.names().is_empty()).then_some(()));
        let gate = until("the container at its gate", || {
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&gate).ok()
        });
        Talker { task, gate }
    }

    /// Has it say more than a file holds, and waits for the rotation.
    pub(crate) fn rotate(&mut self) {
        let newest = |task: &Task<'_>| task.log.rotated().pop().map(|names| names.plain);
        let before = newest(&self.task);
        self.gate.write_all(b"go\n").unwrap();
        until("the rotation", || (newest(&self.task) > before).then_some(()));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.task.log.directory().join(name)
    }

    fn end(self) {
        drop(self.gate);
        assert_eq!(self.task.wait(), 4);
        self.task.delete().unwrap();
    }
}

/// The copy of the shim that compresses.
fn copy(pod: &Pod<'_>) -> u32 {
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    until("the copy that compresses", || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.shim.pid)).unwrap();
        let mut pids = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
        pids.find(|pid| program(*pid) == program(pod.shim.pid))
    })
}

fn is_compressed(task: &Task<'_>) -> bool {
    let rotated = task.log.rotated();
    let there = |name: &str| task.log.directory().join(name).exists();
    let (newest, older) = rotated.split_last().expect("it was rotated");
    there(&newest.plain)
        && !there(&newest.compressed)
        && older
            .iter()
            .all(|names| there(&names.compressed) && !there(&names.plain) && !there(&names.temporary))
}

fn old_logs_are_compressed_and_no_line_is_lost(world: &World) {
    const LINES: usize = 20_000;
    let pod = Pod::start(world);
    let spec = Spec::sh(&format!("seq 1 {LINES}"));
    let task = Task::try_create(&pod.shim, "c1", spec, "", "&max_size=100000&max_files=1000").unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    until("compressed logs", || is_compressed(&task).then_some(()));
    task.delete().unwrap();
    assert!(task.log.rotated().len() > 1, "one is compressed: {:?}", task.log.names());
    let expected: String = (1..=LINES).map(|number| format!("{number}\n")).collect();
    assert!(task.log.text("stdout") == expected, "every line, once, in order");
}

/// Files are counted in either form, and what was one too many while it was compressed does not come back.
fn a_log_that_rotates_fast(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("seq 1 200000");
    let task = Task::try_create(&pod.shim, "c1", spec, "", "&max_size=20000&max_files=4").unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    until("compressed logs", || is_compressed(&task).then_some(()));
    assert_eq!(task.log.names().len(), 4, "{:?}", task.log.names());
    task.delete().unwrap();
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let text = task.log.text("stdout");
    assert!(expected.ends_with(&text) && text.len() > 1000, "the newest lines are kept");
}

fn files_of_others_stay(world: &World) {
    let pod = Pod::start(world);
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=2");
    let others = [
        "0.log.20200101-000000.bak",
        "0.log.20200101-000000.gz.tmp",
        "0.log.20200101-000000.tmp.1",
        "0.log.20201301-000000",
        "0.log.20201301-000000.tmp",
        "0.log.tmp",
        "0.log.gz",
        "1.log.20200101-000000",
        "1.log.20200101-000000.tmp",
        "10.log.20200101-000000",
    ];
    for name in others {
        fs::write(talker.path(name), name).unwrap();
    }
    fs::write(talker.path(OLD), "old").unwrap();
    fs::write(talker.path("0.log.20200101-000000.tmp"), "half").unwrap();
    for _ in 0..3 {
        talker.rotate();
    }
    until("our own to go", || {
        let own = talker.task.log.names().into_iter().filter(|name| !others.contains(&name.as_str()));
        (own.count() == 2).then_some(())
    });
    for name in others {
        assert_eq!(fs::read_to_string(talker.path(name)).unwrap(), name);
    }
    talker.end();
}

fn a_copy_that_is_killed_is_made_again(world: &World) {
    let pod = Pod::start(world);
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=9");
    File::create(talker.path(OLD)).unwrap().set_len(HUGE).unwrap();
    let [old, temporary, compressed] = ["", ".tmp", ".gz"].map(|form| talker.path(&format!("{OLD}{form}")));
    talker.rotate();
    until("a copy that is being made", || temporary.exists().then_some(()));
    let copy = copy(&pod);
    kill(Pid::from_raw(copy.try_into().unwrap()), Signal::SIGKILL).unwrap();
    until("its end", || is_gone(copy).then_some(()));
    assert!(old.exists() && temporary.exists() && !compressed.exists(), "half a copy is none");
    fs::write(&old, "2026-11-21T01:02:03.123456789Z stdout F old\n").unwrap();
    talker.rotate();
    until("compressed logs", || is_compressed(&talker.task).then_some(()));
    assert_eq!(talker.task.log.lines()[0].content, "old");
    talker.end();
}

fn a_copy_goes_with_its_shim(world: &World) {
    let pod = Pod::start(world);
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=9");
    File::create(talker.path(OLD)).unwrap().set_len(HUGE).unwrap();
    talker.rotate();
    let copy = copy(&pod);
    pod.shim.murder();
    until("the end of the copy", || is_gone(copy).then_some(()));
    assert!(talker.path(OLD).exists() && !talker.path(&format!("{OLD}.gz")).exists());
    assert_eq!(pod.shim.delete().exit_status, 137);
    until("the end of the container", || is_gone(talker.task.pid).then_some(()));
}

fn a_copy_that_has_no_room_leaves_the_log(world: &World) {
    let pod = Pod::start(world);
    let disk = world.dir().join("logs/c1");
    fs::create_dir_all(&disk).unwrap();
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=9");
    let old = noise();
    fs::write(talker.path(OLD), &old).unwrap();
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(pod.shim.bundle.join("log"))
        .unwrap();
    talker.rotate();
    let mut said = Vec::new();
    until("the failure in the shim's log", || {
        let _nothing_yet = log.read_to_end(&mut said).is_err();
        String::from_utf8_lossy(&said).contains("failed to compress log").then_some(())
    });
    assert!(String::from_utf8_lossy(&said).contains("No space left"), "{}", String::from_utf8_lossy(&said));
    assert!(fs::read(talker.path(OLD)).unwrap() == old, "the log stays as it was");
    let others: Vec<String> =
        talker.task.log.names().into_iter().filter(|name| name.starts_with(OLD) && name != OLD).collect();
    assert_eq!(others, [] as [String; 0], "half a copy would take the room that is left");
    fs::write(talker.path(OLD), "old").unwrap();
    talker.rotate();
    until("compressed logs", || is_compressed(&talker.task).then_some(()));
    assert_eq!(talker.task.view().log_dropped_bytes, 0);
    talker.end();
    // The thread that wrote it closes it in its own time.
    until("the log to be closed", || umount(&disk).ok());
}

/// More than half of the disk of the test above, and nothing that gets smaller.
pub(crate) fn noise() -> Vec<u8> {
    let mut noise = vec![0; 700 << 10];
    File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    noise
}

fn the_last_rotation_of_a_pod_is_compressed(world: &World) {
    let pod = Pod::start(world);
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=9");
    // Seconds of work.
    File::create(talker.path(OLD)).unwrap().set_len(HUGE / 8).unwrap();
    talker.rotate();
    until("a copy that is being made", || talker.path(&format!("{OLD}.tmp")).exists().then_some(()));
    let directory = talker.task.log.directory().to_owned();
    talker.end();
    pod.shutdown();
    pod.shim.ends();
    let there = |name: &str| directory.join(name).exists();
    assert!(there(&format!("{OLD}.gz")) && !there(OLD) && !there(&format!("{OLD}.tmp")));
}
