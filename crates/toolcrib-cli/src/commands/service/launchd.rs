//! The service as an agent of launchd, which starts the gateway at login.

use std::path::Path;

use super::user_service::{MARKER, ServiceFile, ServicePlan, ServiceSpec, command};

/// Returns the property list, and the commands that load it.
pub(super) fn install_plan(spec: &ServiceSpec, folder: &Path, uid: u32) -> ServicePlan {
    let path = folder.join(format!("{}.plist", label(&spec.name)));
    let domain = format!("gui/{uid}");
    let load = command(&["launchctl", "bootstrap", &domain, &path.display().to_string()]);
    let text = property_list(spec);
    ServicePlan { files: vec![ServiceFile { path, text }], commands: vec![load] }
}

/// Returns the commands that unload the service.
pub(super) fn remove_commands(name: &str, uid: u32) -> Vec<Vec<String>> {
    vec![command(&["launchctl", "bootout", &format!("gui/{uid}/{}", label(name))])]
}

/// Returns the command that succeeds if the service is loaded.
pub(super) fn status_command(name: &str, uid: u32) -> Vec<String> {
    command(&["launchctl", "print", &format!("gui/{uid}/{}", label(name))])
}

fn label(name: &str) -> String {
    format!("{name}.gateway")
}

fn property_list(spec: &ServiceSpec) -> String {
    let string = |text: &str| format!("<string>{}</string>", escape_xml(text));
    let words: String = spec.command().iter().map(|word| format!("    {}\n", string(word))).collect();
    let environment: String = spec
        .environment
        .iter()
        .map(|(name, value)| format!("    <key>{}</key>\n    {}\n", escape_xml(name), string(value)))
        .collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- {} -->\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">\n<dict>\n  <key>Label</key>\n  {}\n  <key>ProgramArguments</key>\n  <array>\n{words}  </array>\n  \
         <key>EnvironmentVariables</key>\n  <dict>\n{environment}  </dict>\n  <key>RunAtLoad</key>\n  <true/>\n  \
         <key>KeepAlive</key>\n  <dict>\n    <key>SuccessfulExit</key>\n    <false/>\n  </dict>\n  \
         <key>StandardErrorPath</key>\n  {}\n</dict>\n</plist>\n",
        MARKER.trim_start_matches("# "),
        string(&label(&spec.name)),
        string(&spec.log.display().to_string()),
    )
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_list_has_program_environment_and_log() {
        let spec = ServiceSpec { program: "/opt/a&b/toolcrib".into(), ..ServiceSpec::for_test() };
        let plan = install_plan(&spec, Path::new("/L"), 501);
        let ServiceFile { path, text } = &plan.files[0];
        assert_eq!(path, Path::new("/L/toolcrib.gateway.plist"));
        assert_eq!(plan.commands, [["launchctl", "bootstrap", "gui/501", "/L/toolcrib.gateway.plist"]]);
        for part in [
            "<string>/opt/a&amp;b/toolcrib</string>\n    <string>serve</string>\n    <string>--listen</string>",
            "<key>PATH</key>\n    <string>/bin:/usr/bin</string>",
            "<key>StandardErrorPath</key>\n  <string>/s/gateway.log</string>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let open = text.matches("<dict>").count();
        assert_eq!((open, text.matches("</dict>").count()), (3, 3));
    }
}
