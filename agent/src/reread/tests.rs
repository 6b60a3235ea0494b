use std::{fs, path::Path};

use tempfile::TempDir;
use tokio::{sync::watch::Receiver, task::JoinHandle};

use super::*;
use crate::config::PodRuntime;

const LONG: Duration = Duration::from_secs(20);

/// A follower of `config.toml` in a directory that is not there yet.
struct World {
    dir: TempDir,
    current: Receiver<CurrentRuntime>,
    view: View,
    _following: JoinHandle<()>,
}

impl World {
    fn begin(first: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/config.toml"), first).unwrap();
        let source = RuntimeSource::reading(&dir.path().join("etc/config.toml"));
        let settings = Arc::new(source.resolve(&source.read().section.unwrap()).unwrap());
        let (sender, current) = watch::channel(CurrentRuntime { settings, fault: None });
        let (driver, view) = (CgroupDriver::Cgroupfs, View::default());
        let follower =
            Follower { source: Arc::new(source), driver, current: sender, view: view.clone(), told: None };
        Self { dir, current, view, _following: tokio::spawn(follower.run()) }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }

    async fn until(&mut self, what: &str, reached: impl FnMut(&CurrentRuntime) -> bool) -> CurrentRuntime {
        let waited = timeout(LONG, self.current.wait_for(reached)).await;
        waited.unwrap_or_else(|_elapsed| panic!("{what}")).unwrap().clone()
    }
}

fn handler(name: &str, binary: &str) -> String {
    format!(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}]\n\
         runtime_type = 'io.containerd.runc.v2'\noptions.BinaryName = '{binary}'\n"
    )
}

#[tokio::test]
async fn a_handler_in_an_imported_file_is_there_at_once() {
    let mut world = World::begin("version = 3\nimports = ['conf.d/*.toml']\n");
    // Neither the file nor its directory are there yet.
    world.write("etc/conf.d/99-nvidia.toml", &handler("nvidia", "/usr/bin/nvidia-container-runtime"));
    let now = world.until("the handler", |now| now.settings.handlers.contains_key("nvidia")).await;
    let binary = Some("/usr/bin/nvidia-container-runtime".to_owned());
    assert_eq!(now.settings.handlers["nvidia"].runtime, PodRuntime::Berth { binary });
    fs::remove_file(world.dir.path().join("etc/conf.d/99-nvidia.toml")).unwrap();
    world.until("no handler", |now| !now.settings.handlers.contains_key("nvidia")).await;
}

#[tokio::test]
async fn a_file_that_is_wrong_keeps_what_held_and_is_told_until_it_is_mended() {
    let mut world = World::begin(&handler("one", "/one"));
    world.write("etc/config.toml", "version = 3\n[plugins\n");
    let wrong = world.until("a fault", |now| now.fault.is_some()).await;
    assert!(wrong.settings.handlers.contains_key("one"), "{wrong:?}");
    let problems = world.view.problems();
    assert!(problems[0].message.contains("config.toml:2"), "{problems:?}");
    // A file that was there and is gone is a fault as well, where it is named.
    fs::remove_file(world.dir.path().join("etc/config.toml")).unwrap();
    let gone = world.until("another", |now| now.fault != wrong.fault).await;
    assert!(gone.settings.handlers.contains_key("one"), "{gone:?}");
    world.write("etc/config.toml", &handler("two", "/two"));
    let mended = world.until("mended", |now| now.fault.is_none()).await;
    assert!(mended.settings.handlers.contains_key("two"), "{mended:?}");
    assert!(world.view.problems().is_empty());
}
