// The parts of Apache ECharts that the pages use; README.md beside it has the command that bundles them.
import * as echarts from "echarts/core";
import { CustomChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  DataZoomInsideComponent, DatasetComponent, GridComponent, LegendScrollComponent, MarkLineComponent,
  ParallelComponent, ToolboxComponent, TooltipComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

echarts.use([
  CustomChart, LineChart, ParallelChart, ScatterChart, DataZoomInsideComponent, DatasetComponent, GridComponent,
  LegendScrollComponent, MarkLineComponent, ParallelComponent, ToolboxComponent, TooltipComponent, CanvasRenderer,
]);
const { init, version } = echarts;
export { init, version };
