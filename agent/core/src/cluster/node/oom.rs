//! What the kernel's log says of memory: which processes it has ended since the whole machine had no more.
//!
//! Sources: `pkg/kubelet/oom/oom_watcher_linux.go` of Kubernetes 1.36, `utils/oomparser/oomparser.go` of cAdvisor;
//! `mm/oom_kill.c` and `kernel/printk/printk.c` of Linux, which tells
//!
//! ```text
//! 4,100,9000000,-;web invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0
//! 6,190,9000100,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,…
//! 3,191,9000200,-;Out of memory: Killed process 4711 (web) total-vm:1024kB, …
//! ```
//!
//! A process chooses its name, and others the text of some records: what is looked for counts where the kernel alone can have
//! written it.

use super::Note;
use crate::status::Severity;

/// Priorities of a record that the kernel itself has written: those of user space have a facility above them.
const OF_KERNEL: u32 = 8;
/// Longest name of a process (`TASK_COMM_LEN`).
const NAME_BYTES_MAX: usize = 15;

/// The log as far as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OomLog {
    /// Whether the kernel has begun to tell, and not said yet of whom.
    is_telling: bool,
}

impl OomLog {
    /// Takes the next record of `/dev/kmsg`. An event where it names a process that was ended for the machine; of those that were
    /// ended for the limit of a cgroup, their containers tell.
    pub fn take(&mut self, record: &str) -> Option<Note> {
        let message = of_kernel(record)?;
        if begins(message) {
            self.is_telling = true;
        }
        if !self.is_telling {
            return None;
        }
        if is_of_a_cgroup(message) {
            self.is_telling = false;
            return None;
        }
        let (process, pid) = victim(message)?;
        self.is_telling = false;
        let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        Some(Note { severity: Severity::Warning, reason: "SystemOOM".to_owned(), message })
    }
}

/// The message of a record of the kernel, without the fields that may follow it.
fn of_kernel(record: &str) -> Option<&str> {
    let (head, rest) = record.split_once(';')?;
    let (priority, _) = head.split_once(',')?;
    let is_of_kernel = priority.parse().is_ok_and(|priority: u32| priority < OF_KERNEL);
    if is_of_kernel { rest.lines().next() } else { None }
}

fn begins(message: &str) -> bool {
    message.split_once(" invoked oom-killer: ").is_some_and(|(name, _)| {
        // A byte that cannot be shown is told as `\x` and two digits.
        name.len().saturating_sub(3 * name.matches("\\x").count()) <= NAME_BYTES_MAX
    })
}

/// Since Linux 5.0 there is a line that says so; what is said beside the victim does for those before, and where lines were lost.
fn is_of_a_cgroup(message: &str) -> bool {
    message.starts_with("oom-kill:constraint=CONSTRAINT_MEMCG")
        || message.starts_with("Memory cgroup out of memory")
        || (message.starts_with("Task in ") && message.contains(" killed as a result of limit of "))
}

/// Who was ended: name and process id.
fn victim(message: &str) -> Option<(&str, u32)> {
    let (before, after) = message.split_once("Killed process ")?;
    if !before.is_empty() && !before.starts_with("Out of memory") {
        return None;
    }
    let (pid, named) = after.split_once(" (")?;
    let (name, _) = named.rsplit_once(')')?;
    Some((name, pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS: &str = "4,1,2,-;web invoked oom-killer: gfp_mask=0x140cca(GFP), order=0, oom_score_adj=0";
    const GLOBAL: &str = "6,2,3,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,\
                          mems_allowed=0,global_oom,task_memcg=/kubepods/pod1,task=web,pid=7";
    const OF_CPUSET: &str = "6,2,3,-;oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=/a,\
                             mems_allowed=0,global_oom,task_memcg=/kubepods/pod1,task=web,pid=7";
    const OF_CGROUP: &str = "6,2,3,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,\
                             mems_allowed=0,oom_memcg=/kubepods,task_memcg=/kubepods/pod1,task=web,pid=7";
    const KILLED: &str = "3,3,4,-;Out of memory: Killed process 7 (web) total-vm:9kB, UID:0 oom_score_adj:0";
    const KILLED_OF_CGROUP: &str = "3,3,4,-;Memory cgroup out of memory: Killed process 7 (web) total-vm:9kB";
    // As Linux 4 tells it.
    const TASK_OF_CGROUP: &str = "6,2,3,-;Task in /kubepods/pod1 killed as a result of limit of /kubepods";
    const KILL: &str = "3,3,4,-;Out of memory: Kill process 7 (web) score 9 or sacrifice child";
    const KILL_OF_CGROUP: &str = "3,3,4,-;Memory cgroup out of memory: Kill process 7 (web) score 9";
    const KILLED_BARE: &str = "3,3,4,-;Killed process 7 (web) total-vm:9kB, anon-rss:0kB, file-rss:0kB";
    const KILLED_ASKER: &str = "3,3,4,-;Out of memory (oom_kill_allocating_task): Killed process 7 (web)";
    const NOBODY: &str = "4,2,3,-;Out of memory and no killable processes...";

    fn told(records: &[&str]) -> Vec<String> {
        let mut log = OomLog::default();
        let mut told = Vec::new();
        for note in records.iter().filter_map(|record| log.take(record)) {
            assert_eq!((note.severity, note.reason.as_str()), (Severity::Warning, "SystemOOM"));
            told.push(note.message);
        }
        told
    }

    #[test]
    fn a_process_that_is_ended_for_the_machine_is_told() {
        for (what, records, expected) in [
            ("nothing", &[][..], 0),
            ("Linux 5 and 6", &[BEGINS, "4,2,3,-;Mem-Info:", GLOBAL, KILLED], 1),
            ("twice", &[BEGINS, GLOBAL, KILLED, BEGINS, GLOBAL, KILLED], 2),
            ("a cpuset without memory", &[BEGINS, OF_CPUSET, KILLED], 1),
            ("Linux 4", &[BEGINS, KILL, KILLED_BARE], 1),
            ("whoever asks is ended", &[BEGINS, GLOBAL, KILLED_ASKER], 1),
            ("a whole cgroup is ended with it", &[BEGINS, GLOBAL, KILLED, KILLED, KILLED], 1),
            ("lines between were lost", &[BEGINS, KILLED], 1),
            ("a cgroup", &[BEGINS, OF_CGROUP, KILLED_OF_CGROUP], 0),
            ("a cgroup on Linux 4", &[BEGINS, TASK_OF_CGROUP, KILL_OF_CGROUP, KILLED_BARE], 0),
            ("a cgroup, lines between were lost", &[BEGINS, KILLED_OF_CGROUP, KILLED], 0),
            ("a cgroup, then all", &[BEGINS, OF_CGROUP, KILLED_OF_CGROUP, BEGINS, GLOBAL, KILLED], 1),
            ("all, then a cgroup", &[BEGINS, GLOBAL, KILLED, BEGINS, OF_CGROUP, KILLED_OF_CGROUP], 1),
            ("the beginning was not read", &[GLOBAL, KILLED], 0),
            ("nobody could be ended", &[BEGINS, NOBODY], 0),
        ] {
            let web = "System OOM encountered, victim process: web, pid: 7";
            assert_eq!(told(records), vec![web; expected], "{what}");
        }
    }

    #[test]
    fn names_are_told_as_the_kernel_shows_them() {
        for (name, pid, expected) in [
            ("a b", "4194304", Some("a b, pid: 4194304")),
            ("x) (y", "7", Some("x) (y, pid: 7")),
            ("\\xc3\\xa4\\x0a", "7", Some("\\xc3\\xa4\\x0a, pid: 7")),
            ("", "7", Some(", pid: 7")),
            ("web", "-1", None),
            ("web", "99999999999", None),
        ] {
            let killed = format!("3,3,4,-;Out of memory: Killed process {pid} ({name}) total-vm:9kB");
            let expected = expected.map(|text| format!("System OOM encountered, victim process: {text}"));
            assert_eq!(told(&[BEGINS, &killed]), Vec::from_iter(expected), "{killed}");
        }
    }

    #[test]
    fn what_others_write_begins_and_ends_nothing() {
        let longest = format!("4,1,2,-;{} invoked oom-killer: gfp_mask=0", "\\x0a".repeat(15));
        assert_eq!(told(&[&longest, KILLED]).len(), 1, "a name of 15 bytes");
        let longer = format!("4,1,2,-;{} invoked oom-killer: gfp_mask=0", "x".repeat(16));
        for begins in [
            longer.as_str(),
            "4,1,2,-;tmpfs: Unknown parameter 'web invoked oom-killer: gfp_mask=0'",
            "12,1,2,-;web invoked oom-killer: gfp_mask=0",
            "30,1,2,-;web invoked oom-killer: gfp_mask=0",
            "4,1,2,-;other\n KEY=web invoked oom-killer: gfp_mask=0",
            "web invoked oom-killer: gfp_mask=0",
            ";web invoked oom-killer: gfp_mask=0",
            "x,1,2,-;web invoked oom-killer: gfp_mask=0",
            "4;web invoked oom-killer: gfp_mask=0",
            "",
        ] {
            assert_eq!(told(&[begins, KILLED]), Vec::<String>::new(), "{begins}");
        }
        for between in [
            "11,2,3,-;Out of memory: Killed process 1 (init) total-vm:9kB",
            "4,2,3,-;tmpfs: Unknown parameter 'Killed process 1 (init)'",
            "14,2,3,-;Memory cgroup out of memory: Killed process 1 (init)",
            "4,2,3,-;tmpfs: Unknown parameter 'oom-kill:constraint=CONSTRAINT_MEMCG'",
            "3,2,3,-;Out of memory: Killed process",
            "3,2,3,-;Out of memory: Killed process 1",
            "3,2,3,-;Out of memory: Killed process 1 (init",
        ] {
            let expected = ["System OOM encountered, victim process: web, pid: 7"];
            assert_eq!(told(&[BEGINS, between, KILLED]), expected, "{between}");
        }
    }

    #[test]
    fn a_record_may_have_further_fields() {
        let begins = format!("{BEGINS}\n SUBSYSTEM=memory\n DEVICE=+memory:0");
        let head = KILLED.replace(",-;", ",-,caller=T7;");
        assert_eq!(told(&[&begins, &head]).len(), 1);
    }
}
