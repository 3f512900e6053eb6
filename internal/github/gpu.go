package github

import (
	"os"
	"path/filepath"
)

// GPURemedy says what to change so that a step sees a GPU, for the way in which
// it runs. root is the file system to look at, "/" but for tests.
func GPURemedy(root string) string {
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	if exists("dev/nvidiactl") {
		return ""
	}
	if !exists(".dockerenv") && !exists("run/.containerenv") {
		return "this machine has no /dev/nvidiactl; run the job on a runner with an NVIDIA GPU and its driver, for example with runs-on: [self-hosted, gpu]"
	}
	return "a container action cannot ask for a GPU itself. Make nvidia the default runtime of the runner's Docker " +
		"(nvidia-ctk runtime configure --runtime=docker --set-as-default, then restart Docker) and give the step the variable NVIDIA_VISIBLE_DEVICES: all; " +
		"or run the job itself in a container with options: --gpus all, and call trtship action in a step with run"
}
