//! The files of the dashboard, which are part of the program. Their source is in `ui/`.

use toolcrib_serve::StaticFile;

/// The files, compressed by the build script.
pub(crate) static FILES: &[StaticFile] = include!(concat!(env!("OUT_DIR"), "/dashboard_files.rs"));

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};
    use toolcrib::util::encoding;

    use super::*;
    use crate::report::events::EVENT_KINDS;

    /// Bytes that the whole dashboard may take when it is sent.
    const MAX_SIZE: usize = 60_000;
    /// Digest of `ui/vendor/preact.js`; `scripts/vendor-preact` writes the file and prints it.
    const VENDORED: &str = "6ac2fa7b25b0d2da867df59537b7b1d6899406e66d59641fead71858331ece87";

    #[test]
    fn dashboard_is_small_and_complete() {
        let size: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(size <= MAX_SIZE, "{size} bytes");
        for path in ["/", "/ui/app.js", "/ui/style.css", "/ui/vendor/preact.js"] {
            assert!(FILES.iter().any(|file| file.path == path), "{path}");
        }
        assert!(FILES.iter().all(|file| file.gzip.starts_with(&[0x1f, 0x8b])));
    }

    #[test]
    fn vendored_module_is_unchanged_and_names_its_licence() {
        let module = include_bytes!("../ui/vendor/preact.js");
        assert_eq!(encoding::to_hex(&Sha256::digest(module)), VENDORED);
        let text = std::str::from_utf8(module).unwrap();
        assert!(text.starts_with("/*") && text.contains("MIT License") && text.contains("Apache License"));
    }

    #[test]
    fn page_follows_every_kind_of_event_but_calls() {
        let store = include_str!("../ui/store.js");
        let list = store.split("const EVENT_KINDS = [").nth(1).unwrap().split(']').next().unwrap();
        let kinds: Vec<&str> = list.split(['"', ',', ' ', '\n']).filter(|kind| !kind.is_empty()).collect();
        let all: Vec<&str> = EVENT_KINDS.into_iter().filter(|kind| *kind != "call").collect();
        assert_eq!(kinds, all);
    }

    #[test]
    fn page_has_no_inline_code_and_needs_no_other_host() {
        let page = include_str!("../ui/index.html");
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"), "{page}");
        assert_eq!(page.matches("<script").count(), 1);
        assert!(page.contains("<script type=\"module\" src=\"/ui/app.js\"></script>"));
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySet", "eval(", "https://"]
            {
                assert!(!text.contains(forbidden), "{}: {forbidden}", path.display());
            }
        }
    }
}
