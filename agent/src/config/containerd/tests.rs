//! Files as people and tools have them.

use std::{fs, path::Path};

use tempfile::TempDir;

use super::*;
use crate::config::{Handler, PodRuntime, RuntimeOptions};

/// What is said of files in a directory, of which `config.toml` is the first. Paths in it are without the directory.
fn section(files: &[(&str, &str)]) -> Result<Section, String> {
    let (dir, root) = directory(files);
    let loaded = load(&dir.path().join("config.toml"), false);
    loaded.section.map_err(|faults| faults.to_string().replace(&format!("{root}/"), ""))
}

fn directory(files: &[(&str, &str)]) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let root = dir.path().display().to_string();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("ROOT", &root)).unwrap();
    }
    (dir, root)
}

fn name(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

fn berth(binary: &str) -> PodRuntime {
    PodRuntime::Berth { binary: Some(binary.to_owned()) }
}

/// `nvidia-ctk runtime configure --runtime=containerd --set-as-default` beside a configuration of version 3.
const NVIDIA: &str = r#"
version = 3

[plugins]

  [plugins."io.containerd.cri.v1.runtime"]

    [plugins."io.containerd.cri.v1.runtime".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes]

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
            SystemdCgroup = true
"#;

/// The older layout, as kata-deploy imports it.
const KATA: &str = r#"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-qemu]
runtime_type = "io.containerd.kata-qemu.v2"
runtime_path = "/opt/kata/bin/containerd-shim-kata-v2"
privileged_without_host_devices = true
pod_annotations = ["io.katacontainers.*"]

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-qemu.options]
ConfigPath = "/opt/kata/share/defaults/kata-containers/configuration-qemu.toml"
"#;

#[test]
fn nvidias_toolkit_and_kata_deploy_add_handlers_in_imported_files() {
    let main = "version = 3\nimports = [\"conf.d/*.toml\", \"ROOT/kata/kata-deploy.toml\"]\n\
                [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = false\n";
    let kata = format!("version = 2\n{KATA}");
    let files =
        [("config.toml", main), ("conf.d/99-nvidia.toml", NVIDIA), ("kata/kata-deploy.toml", kata.as_str())];
    let section = section(&files).unwrap();
    assert_eq!(
        section.files.iter().map(|file| name(file)).collect::<Vec<_>>(),
        ["config.toml", "99-nvidia.toml", "kata-deploy.toml"]
    );
    assert_eq!(section.runtimes.keys().collect::<Vec<_>>(), ["kata-qemu", "nvidia", "runc"]);
    assert_eq!(
        (section.default_runtime.value.as_str(), name(&section.default_runtime.file)),
        ("nvidia", "99-nvidia.toml".into())
    );
    // The default handler is asked first, and says so.
    let driver = section.systemd_cgroup.unwrap();
    assert_eq!((driver.value, name(&driver.file)), (true, "99-nvidia.toml".into()));
    let nvidia = Handler::of_containerd(&section.runtimes["nvidia"]);
    assert_eq!(nvidia, Handler::of(berth("/usr/bin/nvidia-container-runtime")));
    let kata = Handler::of_containerd(&section.runtimes["kata-qemu"]);
    let options = RuntimeOptions::Generic {
        type_url: String::new(),
        config_path: "/opt/kata/share/defaults/kata-containers/configuration-qemu.toml".to_owned(),
        config_body: String::new(),
    };
    let shim = Some("/opt/kata/bin/containerd-shim-kata-v2".into());
    let runtime = PodRuntime::Grouped { name: "io.containerd.kata-qemu.v2".to_owned(), path: shim, options };
    let pod_annotations = vec!["io.katacontainers.*".to_owned()];
    assert_eq!(
        kata,
        Handler { pod_annotations, privileged_without_host_devices: true, ..Handler::of(runtime) }
    );
    assert!(section.not_acted_on.is_empty(), "{:?}", section.not_acted_on);
}

/// What a version calls CRI, and whether it is looked at there.
#[test]
fn every_version_says_the_same() {
    let of = |plugin: &str| {
        format!(
            "[plugins.\"{plugin}\".containerd]\nsnapshotter = \"zfs\"\n\
             [plugins.\"{plugin}\".containerd.runtimes.runc.options]\nBinaryName = \"/own/runc\"\n\
             [plugins.\"{plugin}\".cni]\nbin_dir = \"/cni/bin\"\nconf_dir = \"/cni/net.d\"\n\
             [plugins.\"{plugin}\".registry]\nconfig_path = \"/a:/b\"\n"
        )
    };
    let runtime = "io.containerd.cri.v1.runtime";
    let newest = format!(
        "[plugins.\"{runtime}\".containerd.runtimes.runc.options]\nBinaryName = \"/own/runc\"\n\
         [plugins.\"{runtime}\".cni]\nbin_dirs = [\"/cni/bin\"]\nconf_dir = \"/cni/net.d\"\n\
         [plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"zfs\"\nregistry.config_path = \"/a:/b\"\n"
    );
    for text in [
        of("cri"),
        format!("version = 1\n{}", of("cri")),
        format!("version = 2\n{}", of("io.containerd.grpc.v1.cri")),
        format!("version = 3\n{newest}"),
        format!("version = 4\n{newest}"),
    ] {
        let section = section(&[("config.toml", &text)]).unwrap();
        assert_eq!(section.snapshotter.unwrap().value, "zfs", "{text}");
        assert_eq!(Handler::of_containerd(&section.runtimes["runc"]).runtime, berth("/own/runc"), "{text}");
        assert_eq!(
            section.registry_dirs.unwrap().value,
            ["/a", "/b"].map(std::path::PathBuf::from),
            "{text}"
        );
        assert_eq!(section.cni_conf_dir.unwrap().value, Path::new("/cni/net.d"), "{text}");
        assert_eq!(section.cni_bin_dirs.unwrap().value, [Path::new("/cni/bin")], "{text}");
    }
}

#[test]
fn a_later_file_is_laid_over_an_earlier_one_by_key() {
    let handler = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.x]\n";
    let first = format!(
        "version = 3\nimports = ['b.toml', 'a.toml']\n{handler}runtime_type = 'io.containerd.runc.v2'\npod_annotations = ['a', 'b']\noptions.BinaryName = '/first'\n"
    );
    let second = format!(
        "version = 3\nimports = ['c.toml', 'config.toml']\n{handler}pod_annotations = ['c']\noptions.Root = '/root'\n"
    );
    let files = [
        ("config.toml", first.as_str()),
        ("b.toml", second.as_str()),
        ("a.toml", &format!("version = 3\n{handler}options.BinaryName = '/a'\n")),
        ("c.toml", &format!("version = 3\n{handler}options.BinaryName = '/c'\n")),
    ];
    let section = section(&files).unwrap();
    // Imports of imports come last, and a circle ends.
    assert_eq!(
        section.files.iter().map(|file| name(file)).collect::<Vec<_>>(),
        ["config.toml", "b.toml", "a.toml", "c.toml"]
    );
    let shim = &section.runtimes["x"];
    assert_eq!(shim.pod_annotations, ["c"], "a list is replaced");
    assert_eq!(
        (shim.option("BinaryName"), shim.option("Root")),
        (Some("/c"), Some("/root")),
        "tables are merged"
    );
    let told: Vec<_> =
        section.not_acted_on.iter().map(|said| (said.value.as_str(), name(&said.file))).collect();
    assert_eq!(told, [("containerd.runtimes.x.options.Root", "b.toml".to_owned())]);
}

#[test]
fn the_driver_is_told_by_the_handler_that_containerd_would_ask() {
    let runc = "containerd.runtimes.runc.options.SystemdCgroup";
    for (text, expected) in [
        ("", None),
        // Its own default is nobody's word.
        ("containerd.runtimes.runc.options.BinaryName = 'runc'", None),
        (&format!("{runc} = true"), Some(true)),
        (&format!("{runc} = false"), Some(false)),
        // A default without options tells nothing; runc's own has some without a word of anybody.
        (
            &format!(
                "{runc} = true\ncontainerd.runtimes.a.runtime_type = 'io.containerd.runc.v2'\ncontainerd.default_runtime_name = 'a'"
            ),
            Some(true),
        ),
        (
            &format!(
                "{runc} = true\ncontainerd.runtimes.a.options.SystemdCgroup = false\ncontainerd.default_runtime_name = 'a'"
            ),
            Some(false),
        ),
        (&format!("{runc} = true\ncontainerd.runtimes.a.options.SystemdCgroup = false"), Some(true)),
        (
            "containerd.runtimes.k.runtime_type = 'io.containerd.kata.v2'\ncontainerd.runtimes.k.options.SystemdCgroup = true\ncontainerd.default_runtime_name = 'k'",
            None,
        ),
    ] {
        let text = format!("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n{text}\n");
        let section = section(&[("config.toml", &text)]).unwrap();
        assert_eq!(section.systemd_cgroup.map(|said| said.value), expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let runtime = "[plugins.'io.containerd.cri.v1.runtime']\n";
    for (text, expected) in [
        ("version = 3\n[plugins\n".to_owned(), "config.toml:2: "),
        (
            "version = 5\n".to_owned(),
            "config.toml: version: 5 is none of the versions that are known, 1 to 4",
        ),
        ("version = 3\nimports = 'a'\n".to_owned(), "config.toml: imports: is no list of paths"),
        ("version = 3\nimports = ['gone.toml']\n".to_owned(), "gone.toml: cannot be read: No such file"),
        ("version = 3\nplugins = 1\n".to_owned(), "config.toml: plugins: is no table"),
        (
            format!("version = 3\n{runtime}containerd.default_runtime_name = 'kata'\n"),
            "config.toml: containerd.default_runtime_name: `kata` is none of the handlers in containerd.runtimes",
        ),
        (
            format!("version = 3\n{runtime}containerd.runtimes.x.runtime_type = 2\n"),
            "config.toml: containerd.runtimes.x.runtime_type: is not a text",
        ),
        (
            format!("version = 3\n{runtime}cni.conf_dir = 'net.d'\n"),
            "config.toml: cni.conf_dir: `net.d` is not an absolute path",
        ),
        (
            format!("version = 3\n{runtime}cni.conf_template = 'net.tmpl'\n"),
            "config.toml: cni.conf_template: `net.tmpl` is not an absolute path",
        ),
    ] {
        let fault = section(&[("config.toml", &text)]).unwrap_err();
        assert!(fault.starts_with(expected), "{text}: {fault}");
    }
}

#[test]
fn files_of_any_kind_end() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("config.toml");
    let fault = |text: &[u8]| {
        fs::write(&path, text).unwrap();
        load(&path, false).section.err().map(|faults| faults.to_string())
    };
    let deep = |open: &str, count: usize| open.repeat(count).into_bytes();
    for text in [
        b"\xff\xfe".to_vec(),
        deep("[a.", 100_000),
        deep("a.", 400_000),
        [deep("plugins.x=[", 1), deep("[", 500_000)].concat(),
        [deep("plugins.x=", 1), deep("{a=", 300_000)].concat(),
        vec![b'#'; 2 << 20],
    ] {
        assert!(fault(&text).is_some());
    }
    // So deep as TOML lets it be.
    let keys = "a.".repeat(60);
    assert_eq!(
        fault(format!("version = 3\nplugins.'io.containerd.cri.v1.runtime'.{keys}b = 1\n").as_bytes()),
        None
    );
    let many: Vec<String> = (0..200).map(|number| format!("'{number}.toml'")).collect();
    for number in 0..200 {
        fs::write(dir.path().join(format!("{number}.toml")), "version = 3\n").unwrap();
    }
    let text = fault(format!("version = 3\nimports = [{}]\n", many.join(",")).as_bytes()).unwrap();
    assert!(text.ends_with("more than 100 files are imported"), "{text}");
    // Each level alone has few enough.
    for number in 0..120 {
        let level = dir.path().join(format!("deep/{number}"));
        fs::create_dir_all(&level).unwrap();
        for inner in 0..100 {
            fs::write(level.join(format!("{inner}.toml")), "version = 3\n").unwrap();
        }
    }
    let text = fault(b"version = 3\nimports = ['deep/*/*.toml']\n").unwrap();
    assert!(text.ends_with("leads to more than 10000 paths"), "{text}");
    nix::unistd::mkfifo(&dir.path().join("pipe.toml"), nix::sys::stat::Mode::from_bits_truncate(0o600))
        .unwrap();
    let text = fault(b"version = 3\nimports = ['*.toml']\nplugins = {}\n");
    assert!(text.is_some(), "as many as before");
    let pipe = load(&dir.path().join("pipe.toml"), false).section.unwrap_err().to_string();
    assert!(pipe.ends_with("it is no file"), "{pipe}");
}

#[test]
fn a_file_may_be_absent_where_nobody_names_it() {
    let gone = Path::new("/no/such/config.toml");
    assert_eq!(load(gone, true).section, Ok(Section::default()));
    load(gone, false).section.unwrap_err();
    // It may come.
    assert_eq!(load(gone, true).directories, [Path::new("/no/such").to_owned()].into());
}

#[test]
fn what_is_not_acted_on_is_told_unless_it_is_containerds_default() {
    let text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n\
                enable_unprivileged_ports = true\nenable_unprivileged_icmp = false\ncni.max_conf_num = 0\n\
                containerd.runtimes.runc.sandboxer = 'podsandbox'\ncontainerd.runtimes.runc.snapshotter = 'zfs'\n\
                [plugins.'io.containerd.cri.v1.images']\nmax_concurrent_downloads = 3\n\
                registry.mirrors.'docker.io'.endpoint = ['https://mirror.test']\n";
    let section = section(&[("config.toml", text)]).unwrap();
    let told: Vec<_> = section.not_acted_on.iter().map(|said| said.value.as_str()).collect();
    assert_eq!(
        told,
        [
            "cni.max_conf_num",
            "enable_unprivileged_icmp",
            "containerd.runtimes.runc.snapshotter",
            "images: registry.mirrors",
        ]
    );
}

#[test]
fn labels_are_made_where_selinux_is_enabled_of_as_many_categories_as_are_said() {
    let at = "[plugins.'io.containerd.cri.v1.runtime']\n";
    for (text, expected) in [
        ("", Ok((false, 1024))),
        ("enable_selinux = true", Ok((true, 1024))),
        ("enable_selinux = true\nselinux_category_range = 0", Ok((true, 1024))),
        ("selinux_category_range = -3", Ok((false, 1024))),
        ("selinux_category_range = 2", Ok((false, 2))),
        ("selinux_category_range = 1024", Ok((false, 1024))),
        ("selinux_category_range = 1", Ok((false, 1024))),
        ("selinux_category_range = 1025", Ok((false, 1024))),
        (
            "enable_selinux = true\nselinux_category_range = 1",
            Err("selinux_category_range: 1 is not within 2 and 1024"),
        ),
        (
            "enable_selinux = true\nselinux_category_range = 1025",
            Err("selinux_category_range: 1025 is not within 2 and 1024"),
        ),
        ("selinux_category_range = \"all\"", Err("selinux_category_range: is not a number")),
        ("enable_selinux = 1", Err("enable_selinux: is not true or false")),
    ] {
        let found = section(&[("config.toml", &format!("version = 3\n{at}{text}\n"))]);
        let found = found.map(|section| {
            assert!(section.not_acted_on.is_empty(), "{:?}", section.not_acted_on);
            (section.enable_selinux, section.selinux_categories)
        });
        match expected {
            Ok(expected) => assert_eq!(found, Ok(expected), "{text}"),
            Err(expected) => assert!(found.unwrap_err().ends_with(expected), "{text}"),
        }
    }
}
