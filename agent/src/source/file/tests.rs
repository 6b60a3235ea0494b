use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;
use tokio::sync::mpsc::{self, Receiver};

use super::*;
use crate::config::{Facts, KubeletFlags, Settings};

/// Far longer than anything here takes: a wait that ends by it is a failure.
const LONG: Duration = Duration::from_secs(20);

struct World {
    directory: TempDir,
    events: Receiver<Event>,
    view: View,
    cancel: CancellationToken,
}

impl World {
    fn start(check: Duration, fill: impl FnOnce(&Path)) -> Self {
        let directory = TempDir::new().unwrap();
        fill(directory.path());
        Self::on(directory.path().to_owned(), directory, check)
    }

    fn on(path: PathBuf, directory: TempDir, check: Duration) -> Self {
        let mut config = config();
        config.static_pod_path = Some(path);
        config.file_check = check;
        let (sender, events) = mpsc::channel(8);
        let (view, cancel) = (View::default(), CancellationToken::new());
        let world = Self { directory, events, view: view.clone(), cancel: cancel.clone() };
        let read: Read = Box::new(|path| Box::pin(async move { Ok(Found::at(&path)) }));
        tokio::spawn(async move { run(&config, read, view, sender, cancel).await });
        world
    }

    async fn names(&mut self) -> Vec<String> {
        self.desired().await.0
    }

    /// Names, and whether they are all.
    async fn desired(&mut self) -> (Vec<String>, bool) {
        match timeout(LONG, self.events.recv()).await.unwrap().unwrap() {
            Event::Desired { source: Source::File, pods, is_whole } => {
                (pods.iter().map(|pod| pod.name.name.clone()).collect(), is_whole)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn problem(&self, part: &str) {
        let found = async {
            while !self.view.problems().iter().any(|problem| problem.message.contains(part)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(LONG, found).await.unwrap_or_else(|_| panic!("no `{part}` in {:?}", self.view.problems()));
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn config() -> Config {
    let flags = KubeletFlags::parse(&["--hostname-override=Node-1"]).unwrap();
    let mut settings = Settings::load(flags).unwrap();
    settings.kubelet.fail_cgroup_v1 = Some(false);
    settings.resolve(&Facts::gather(Path::new("/")).unwrap()).unwrap()
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: busybox}}\n"
    )
}

#[tokio::test]
async fn files_come_change_and_go() {
    let mut world = World::start(LONG, |directory| {
        fs::write(directory.join("a.yaml"), pod("a")).unwrap();
    });
    assert_eq!(world.names().await, ["a-node-1"]);
    world.write("b.yaml", &pod("b"));
    assert_eq!(world.names().await, ["a-node-1", "b-node-1"]);
    world.write("a.yaml", &pod("c"));
    assert_eq!(world.names().await, ["c-node-1", "b-node-1"]);
    fs::rename(world.directory.path().join("b.yaml"), world.directory.path().join("0.yaml")).unwrap();
    assert_eq!(world.names().await, ["b-node-1", "c-node-1"]);
    fs::remove_file(world.directory.path().join("a.yaml")).unwrap();
    assert_eq!(world.names().await, ["b-node-1"]);
}

#[tokio::test]
async fn what_is_no_manifest_is_passed_over() {
    let mut world = World::start(LONG, |directory| {
        fs::write(directory.join("a.yaml"), pod("a")).unwrap();
        fs::write(directory.join(".b.yaml"), pod("b")).unwrap();
        fs::create_dir(directory.join("sub")).unwrap();
        fs::write(directory.join("sub/c.yaml"), pod("c")).unwrap();
        nix::unistd::mkfifo(&directory.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink(directory.join("sub/c.yaml"), directory.join("link.yaml")).unwrap();
        symlink("/nowhere", directory.join("dangling.yaml")).unwrap();
    });
    assert_eq!(world.names().await, ["a-node-1", "c-node-1"]);
    assert_eq!(world.view.problems(), []);
}

#[tokio::test]
async fn a_broken_file_stops_neither_others_nor_its_own_pods() {
    let mut world = World::start(LONG, |directory| {
        fs::write(directory.join("a.yaml"), pod("a")).unwrap();
        fs::write(directory.join("b.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: [").unwrap();
    });
    assert_eq!(world.names().await, ["a-node-1"]);
    world.problem("b.yaml:3").await;
    world.write("a.yaml", &pod("a").replace("image", "imgae"));
    world.problem("spec.containers[0].image: must be the name of an image").await;
    world.write("a.yaml", "");
    world.problem("no pod in it").await;
    // Mended, both count again; nothing was sent in between.
    world.write("b.yaml", &pod("b"));
    assert_eq!(world.names().await, ["a-node-1", "b-node-1"]);
    world.write("a.yaml", &pod("d"));
    assert_eq!(world.names().await, ["d-node-1", "b-node-1"]);
    assert_eq!(world.view.problems(), []);
}

#[tokio::test]
async fn of_two_pods_with_one_name_the_first_runs() {
    let mut world = World::start(LONG, |directory| {
        fs::write(directory.join("1.yaml"), pod("a")).unwrap();
        fs::write(directory.join("2.yaml"), pod("a")).unwrap();
    });
    assert_eq!(world.names().await, ["a-node-1"]);
    let problems = world.view.problems();
    assert!(problems[0].place.ends_with("2.yaml") && problems.len() == 1, "{problems:?}");
}

#[tokio::test]
async fn one_file_as_the_path() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("one.json");
    fs::write(directory.path().join("other.yaml"), pod("other")).unwrap();
    let mut world = World::on(path, directory, LONG);
    assert_eq!(world.names().await, [] as [&str; 0]);
    world.write(
        "one.json",
        r#"{"apiVersion": "v1", "kind": "PodList", "items": [
            {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            {"metadata": {"name": "y"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}"#,
    );
    assert_eq!(world.names().await, ["x-node-1", "y-node-1"]);
}

#[tokio::test]
async fn a_directory_that_comes_later_is_found_by_looking_again() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("not/yet");
    let mut world = World::on(path.clone(), directory, Duration::from_millis(20));
    assert_eq!(world.names().await, [] as [&str; 0]);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("a.yaml"), pod("a")).unwrap();
    assert_eq!(world.names().await, ["a-node-1"]);
}

#[test]
fn a_second_look_gives_the_same_values() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("a.yaml"), pod("a")).unwrap();
    let scan = Scan { path: directory.path().to_owned(), node: "n".to_owned() };
    let first = scan.run(&Seen::default(), Found::at(directory.path()));
    let second = scan.run(&first, Found::at(directory.path()));
    assert_eq!(first, second);
    assert!(Arc::ptr_eq(&first.pods()[0], &second.pods()[0]));
}

#[tokio::test]
async fn what_is_whole_is_read_at_once_and_what_is_being_written_is_waited_for() {
    let begun = |name: &str| Some(Change::Begun(name.into()));
    let whole = |name: &str| Some(Change::Whole(name.into()));
    let cases = [
        (vec![whole("a")], true),
        (vec![begun("a")], false),
        (vec![begun("a"), whole("a")], true),
        (vec![begun("a"), begun("b"), whole("a")], false),
        (vec![begun("a"), begun("b"), whole("a"), whole("b")], true),
        (vec![whole("a"), Some(Change::Other)], false),
        (vec![None], false),
    ];
    for (changes, settled) in cases {
        let mut watch = Watch::new();
        let told = format!("{changes:?}");
        let last = changes.into_iter().map(|change| watch.is_settled(change)).last();
        assert_eq!(last, Some(settled), "{told}");
    }
}

/// A file that was made as large as it is to become is full of zeros, each of which takes six bytes in an answer.
#[test]
fn a_file_without_sense_hides_no_other() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("a.yaml"), "\0".repeat(3 << 20)).unwrap();
    fs::write(directory.path().join("b.yaml"), pod("b")).unwrap();
    let found = Found::at(directory.path());
    let message = serde_json::to_vec(&found).unwrap();
    assert!(message.len() < 1 << 20, "{} bytes", message.len());
    let scan = Scan { path: directory.path().to_owned(), node: "n".to_owned() };
    let seen = scan.run(&Seen::default(), found);
    assert_eq!(seen.pods().len(), 1);
    assert!(seen.problems[0].message.contains("all files together are too large"), "{:?}", seen.problems);
}

#[test]
fn the_length_as_json_is_that_of_json() {
    for text in ["", "a: \"b\"\n\tc: 'd\\e'\r", "\0\u{1f}\u{8}\u{c}\u{7f}", "größer 😀"] {
        let length = serde_json::to_string(text).unwrap().len();
        let counted = scan::length_as_json(text);
        assert!((length..=length + 4 * text.len()).contains(&counted), "{text:?}: {counted}, {length}");
    }
}

#[tokio::test]
async fn changes_that_have_come_are_one() {
    let mut watch = Watch::new();
    let waiting = (0..500).map(|number| Change::Whole(number.to_string().into()));
    watch.changes = Either::Left(stream::iter(waiting).chain(stream::pending()).boxed());
    watch.changed(LONG).await;
    assert!(watch.changes.next().now_or_never().is_none(), "a read for each file");
    let endless = stream::repeat_with(|| Change::Whole("a".into()));
    watch.changes = Either::Left(endless.boxed());
    watch.changed(LONG).await;
}

/// The pods of an earlier run may be in what cannot be read (`Event::Desired`).
#[tokio::test]
async fn what_could_not_be_read_since_the_start_is_not_taken_for_empty() {
    let mut world = World::start(LONG, |directory| {
        fs::write(directory.join("a.yaml"), pod("a")).unwrap();
        fs::write(directory.join("b.yaml"), "metadata: [").unwrap();
    });
    assert_eq!(world.desired().await, (vec!["a-node-1".to_owned()], false));
    // One that was not there at the start gave nothing to an earlier run.
    world.write("c.yaml", "metadata: [");
    world.problem("c.yaml").await;
    world.write("b.yaml", &pod("b"));
    assert_eq!(world.desired().await, (vec!["a-node-1".to_owned(), "b-node-1".to_owned()], true));
    // From now on it is known what it gave.
    world.write("b.yaml", "metadata: [");
    world.problem("b.yaml").await;
    fs::remove_file(world.directory.path().join("a.yaml")).unwrap();
    assert_eq!(world.desired().await, (vec!["b-node-1".to_owned()], true));
}

#[tokio::test]
async fn a_broken_file_that_is_removed_gave_nothing() {
    let mut world = World::start(LONG, |directory| fs::write(directory.join("a.yaml"), "").unwrap());
    assert_eq!(world.desired().await, (vec![], false));
    fs::remove_file(world.directory.path().join("a.yaml")).unwrap();
    assert_eq!(world.desired().await, (vec![], true));
}

#[tokio::test]
async fn a_directory_that_cannot_be_listed_is_not_taken_for_empty() {
    let mut world = World::start(Duration::from_millis(20), |directory| {
        for number in 0..=1000 {
            fs::write(directory.join(format!("{number}.txt")), "").unwrap();
        }
    });
    assert_eq!(world.desired().await, (vec![], false));
    world.problem("more than 1000 files").await;
    for number in 0..=1000 {
        fs::remove_file(world.directory.path().join(format!("{number}.txt"))).unwrap();
    }
    let (pods, mut is_whole) = world.desired().await;
    assert_eq!(pods, [""; 0]);
    // Some files were still there, and empty.
    while !is_whole {
        is_whole = world.desired().await.1;
    }
}

#[tokio::test]
async fn a_watch_that_could_not_be_opened_is_opened_later() {
    let directory = TempDir::new().unwrap();
    let mut watch = Watch::new();
    (watch.watches, watch.changes) = (None, Either::Right(stream::pending()));
    assert!(watch.begins(directory.path().to_owned()).await, "what changed before is not read");
    assert!(!watch.begins(directory.path().to_owned()).await);
    fs::write(directory.path().join("a.yaml"), pod("a")).unwrap();
    timeout(LONG, watch.changed(LONG * 2)).await.expect("a change is not seen");
}
