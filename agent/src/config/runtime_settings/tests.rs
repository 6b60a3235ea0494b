use serde_json::{Value, json};

use super::*;
use crate::config::containerd::Shim;

/// What holds, of a document, and of containerd's section with these handlers and this default.
fn resolved(
    document: Value,
    shims: &[(&str, Shim)],
    default: &str,
) -> Result<RuntimeSettings, UnknownDefault> {
    source(document).resolve(&section(shims, default))
}

fn source(document: Value) -> RuntimeSource {
    RuntimeSource::of(&serde_json::from_value(document).unwrap())
}

fn section(shims: &[(&str, Shim)], default: &str) -> Section {
    let default_runtime = Said { value: default.to_owned(), file: Path::new("/c.toml").into() };
    let mut section = Section { default_runtime, ..Section::default() };
    section.runtimes.extend(shims.iter().map(|(name, shim)| ((*name).to_owned(), shim.clone())));
    section
}

fn runc(binary: &str) -> Shim {
    let options = toml::Table::from_iter([("BinaryName".to_owned(), binary.into())]);
    Shim { options, files: [Path::new("/n.toml").into()].into(), ..Shim::default() }
}

fn berth(binary: Option<&str>) -> PodRuntime {
    PodRuntime::Berth { binary: binary.map(str::to_owned) }
}

#[test]
fn the_document_is_before_containerd_and_that_before_the_default() {
    let kata = Shim { name: "io.containerd.kata.v2".to_owned(), ..Shim::default() };
    let kata_runtime = PodRuntime::named("io.containerd.kata.v2");
    let stock = PodRuntime::named("io.containerd.runc.v2");
    // Document, default of containerd, handler that is looked at, what it is.
    for (document, default, name, expected) in [
        (json!({}), "runc", "", Some(berth(None))),
        (json!({}), "runc", "berth", Some(berth(None))),
        (json!({}), "runc", "runc", Some(berth(None))),
        (json!({}), "runc", "nvidia", Some(berth(Some("/nvidia")))),
        (json!({}), "runc", "kata", Some(kata_runtime.clone())),
        (json!({}), "runc", "gone", None),
        (json!({}), "nvidia", "", Some(berth(Some("/nvidia")))),
        (json!({}), "nvidia", "berth", Some(berth(None))),
        (json!({}), "kata", "", Some(kata_runtime.clone())),
        // What the document says of the OCI runtime is of pods that name no handler.
        (json!({ "runtime": { "ociRuntime": "crun" } }), "nvidia", "", Some(berth(None))),
        (json!({ "runtime": { "ociRuntime": "crun" } }), "nvidia", "nvidia", Some(berth(Some("/nvidia")))),
        (json!({ "runtime": { "ociRuntime": "auto" } }), "nvidia", "", Some(berth(Some("/nvidia")))),
        (json!({ "runtime": { "ociRuntime": "crun" } }), "kata", "", Some(kata_runtime)),
        (json!({ "runtime": { "defaultHandler": "berth" } }), "kata", "", Some(berth(None))),
        (json!({ "runtime": { "defaultHandler": "nvidia" } }), "kata", "", Some(berth(Some("/nvidia")))),
        (
            json!({ "runtime": { "handlers": { "nvidia": "io.containerd.runc.v2" } } }),
            "runc",
            "nvidia",
            Some(stock.clone()),
        ),
        (
            json!({ "runtime": { "handlers": { "nvidia": "io.containerd.runc.v2" } } }),
            "nvidia",
            "",
            Some(stock),
        ),
    ] {
        let shims = [("nvidia", runc("/nvidia")), ("kata", kata.clone())];
        let settings = resolved(document.clone(), &shims, default).unwrap();
        let found = settings.handlers.get(name).map(|handler| handler.runtime.clone());
        assert_eq!(found, expected, "{document} {default} {name:?}");
    }
}

#[test]
fn pods_that_name_none_are_not_given_another_than_the_default() {
    let unknown = |name: &str| Err(UnknownDefault(name.to_owned()));
    assert_eq!(resolved(json!({ "runtime": { "defaultHandler": "kata" } }), &[], "runc"), unknown("kata"));
}

#[test]
fn directories_and_the_snapshotter() {
    let mut section = Section::default();
    let file: Arc<Path> = Path::new("/c.toml").into();
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    section.snapshotter = Some(Said { value: "zfs".to_owned(), file: Arc::clone(&file) });
    section.registry_dirs = Some(Said { value: paths(&["/a", "/b"]), file: Arc::clone(&file) });
    section.cni_conf_dir = Some(Said { value: "/net.d".into(), file: Arc::clone(&file) });
    section.cni_bin_dirs = Some(Said { value: paths(&["/bin"]), file });
    let document = json!({ "cni": { "confDir": "/own/net.d" }, "registryConfigDir": "/own/certs.d" });
    let source = source(document);
    let settings = source.resolve(&section).unwrap();
    assert_eq!(settings.snapshotter, "zfs");
    assert_eq!(settings.registry_dirs, paths(&["/own/certs.d"]));
    assert_eq!(settings.cni_conf_dir, Path::new("/own/net.d"));
    assert_eq!(settings.cni_bin_dirs, paths(&["/bin"]));
    let told: Vec<String> = source
        .origins(&section)
        .into_iter()
        .map(|Origin { setting, value, from }| format!("{setting}: {value} ({from})"))
        .collect();
    assert_eq!(
        told,
        [
            "default handler: the node's OCI runtime (default of containerd)",
            "handler berth: the node's OCI runtime (default)",
            "handler runc: the node's OCI runtime (default of containerd)",
            "snapshotter: zfs (/c.toml)",
            "registry settings: /own/certs.d (BerthConfiguration)",
            "CNI configuration: /own/net.d (BerthConfiguration)",
            "CNI plugins: /bin (/c.toml)",
        ]
    );
}
