use std::fs;

use tempfile::TempDir;

use super::*;

/// A tree of version 2 in a directory.
struct Bench {
    directory: TempDir,
    tree: Tree,
}

impl Bench {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let tree = Tree::at(directory.path());
        Self { directory, tree }
    }

    fn file(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }
}

fn value(controller: Controller, name: &str) -> CgroupFile {
    CgroupFile { controller, name: name.to_owned(), value: "1".to_owned(), unit: 1 }
}

#[test]
fn levels_are_made_seen_and_removed() {
    let Bench { directory: _directory, tree } = &Bench::new();
    for path in ["/kubepods/burstable/pod1", "/kubepods/burstable/pod2/abc", "/kubepods/pod3"] {
        assert!(!tree.exists(path));
        tree.ensure(path).unwrap();
        assert!(tree.exists(path));
    }
    assert_eq!(tree.children("/kubepods/burstable"), ["pod1", "pod2"]);
    assert_eq!(tree.children("/kubepods/besteffort"), [""; 0]);
    for _ in 0..2 {
        tree.remove("/kubepods/burstable/pod2").unwrap();
        assert_eq!(tree.children("/kubepods/burstable"), ["pod1"]);
    }
}

#[test]
fn a_value_without_its_controller_is_told_by_name() {
    let bench = Bench::new();
    bench.tree.ensure("/kubepods").unwrap();
    for (controller, file) in
        [(Controller::Cpu, "cpu.weight"), (Controller::Memory, "memory.max"), (Controller::Pids, "pids.max")]
    {
        let error = bench.tree.write("/kubepods", &[value(controller, file)]).unwrap_err().to_string();
        let name = controller.as_str();
        assert_eq!(error, format!("bound the {name} of pods: their cgroup has no {name} controller"));
        fs::write(bench.file("/kubepods").join(file), "").unwrap();
        bench.tree.write("/kubepods", &[value(controller, file)]).unwrap();
        assert_eq!(fs::read_to_string(bench.file("/kubepods").join(file)).unwrap(), "1");
    }
    // A level that is gone is another matter.
    let gone = bench.tree.write("/kubepods/pod1", &[value(Controller::Cpu, "cpu.weight")]).unwrap_err();
    assert!(matches!(gone, TreeError::Write { .. }), "{gone}");
    // Not every machine has pages of every size.
    bench.tree.write("/kubepods", &[value(Controller::Hugetlb, "hugetlb.1GB.max")]).unwrap();
    assert!(!bench.file("/kubepods/hugetlb.1GB.max").exists());
}

/// `scripts/vm test agent`
#[test]
#[ignore = "makes levels on the machine, which has to run cgroup v2 with nobody in the root"]
fn version_2_of_this_machine() {
    let tree = Tree::new(CgroupVersion::V2);
    let root = Path::new(ROOT).join("berthtest");
    let pod = "/berthtest/kubepods/burstable/pod1";
    tree.ensure(pod).unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    for controller in ["cpu", "io", "memory", "pids"] {
        for level in ["kubepods", "kubepods/burstable", "kubepods/burstable/pod1"] {
            let there = read(&format!("{level}/cgroup.controllers"));
            assert!(
                there.split_whitespace().any(|one| one == controller),
                "{controller} of {level}: {there}"
            );
        }
    }
    tree.write(pod, &[value(Controller::Memory, "memory.oom.group")]).unwrap();

    // A process in a level that has to hand something down is named.
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let occupied = root.join("occupied");
    fs::create_dir(&occupied).unwrap();
    level::write(&occupied.join("cgroup.procs"), &child.id().to_string()).unwrap();
    let error = tree.ensure("/berthtest/occupied/kubepods").unwrap_err().to_string();
    assert!(error.contains(&format!("processes {} are in it", child.id())), "{error}");

    // One in a pod goes with it, and the directory with both.
    fs::create_dir(root.join("kubepods/burstable/pod1/container")).unwrap();
    level::write(&root.join("kubepods/burstable/pod1/container/cgroup.procs"), &child.id().to_string())
        .unwrap();
    tree.remove("/berthtest").unwrap();
    assert!(!root.exists());
    child.wait().unwrap();
}

#[test]
fn of_a_level_that_is_not_there_nothing_is_used() {
    let bench = Bench::new();
    let has = || bench.tree.memory_use("/kubepods/pod1/c1");
    assert_eq!(has().unwrap(), None);
    bench.tree.ensure("/kubepods/pod1/c1").unwrap();
    let [used, limit] =
        ["current", "max"].map(|name| bench.file(&format!("/kubepods/pod1/c1/memory.{name}")));
    fs::write(&used, "4096\n").unwrap();
    for (text, bytes) in [("8192\n", 8192), ("max\n", u64::MAX)] {
        fs::write(&limit, text).unwrap();
        assert_eq!(has().unwrap(), Some(MemoryUse { used: 4096, limit: bytes }));
    }
    fs::write(&used, "much\n").unwrap();
    has().unwrap_err();
}

#[test]
fn a_level_has_its_values_or_not() {
    let bench = Bench::new();
    let files = [value(Controller::Cpu, "cpu.weight"), value(Controller::Hugetlb, "hugetlb.2MB.max")];
    let has = || bench.tree.has("/kubepods/pod1", &files).unwrap();
    assert!(!has(), "it is not there");
    bench.tree.ensure("/kubepods/pod1").unwrap();
    let level = bench.file("/kubepods/pod1");
    for (text, expected) in [("1\n", true), ("2\n", false)] {
        fs::write(level.join("cpu.weight"), text).unwrap();
        assert_eq!(has(), expected, "{text:?}; there are no huge pages of that size");
    }
    fs::write(level.join("cpu.weight"), "1\n").unwrap();
    fs::write(level.join("hugetlb.2MB.max"), "0\n").unwrap();
    assert!(!has());
    fs::remove_dir_all(&level).unwrap();
    assert!(!has());
}
