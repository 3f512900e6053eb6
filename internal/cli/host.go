package cli

import (
	"bufio"
	"os"
	"runtime"
	"strings"
)

// osName returns the name of the distribution and the architecture.
func osName() string {
	name := valueOf("/etc/os-release", "PRETTY_NAME", "=")
	if name == "" {
		name = runtime.GOOS
	}
	return strings.Trim(name, `"`) + " " + runtime.GOARCH
}

// cpuName returns the processor's model, empty where it is not known.
func cpuName() string { return valueOf("/proc/cpuinfo", "model name", ":") }

func cores() int { return runtime.NumCPU() }

// valueOf returns the value of the first line "key<sep>value" of a file.
func valueOf(path, key, sep string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		k, v, ok := strings.Cut(lines.Text(), sep)
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
