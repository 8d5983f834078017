"""Reading cameras: RTSP, V4L2, MJPEG over HTTP, video files and folders. The sole importer of FFmpeg (`av`)."""
